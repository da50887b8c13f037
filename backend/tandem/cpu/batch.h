// What a pass works out once of its batch: positions, slots, trees, attention's tasks.
#pragma once

#include <algorithm>
#include <vector>

#include "sampling.h"
#include "structures.h"
#include "team.h"
#include "told.h"
#include "vector_attention.h"

namespace {

constexpr int kRows = 32;       // of a query that attend together, over one reading of the cache
constexpr int kScores = 65536;  // of a task, unless one KV head has more: they stay in the cache
constexpr int kMostScores = 4 << 20;  // of one KV head, unless one row has more: each thread has room

struct Task {
  int32_t query, first, rows;  // `first` counts from the query's first row
  int32_t head, heads;         // KV heads
};

// Rows of a query, one behind the other.
struct Span {
  int32_t query, first, rows;  // `first` counts from the query's first row
};

struct Run {
  std::vector<int32_t> position, slot;     // [rows]
  std::vector<std::vector<int32_t>> slots;  // [queries] [start + stored + length] of the text
  std::vector<int32_t> first;              // [queries] first row of each
  std::vector<std::vector<uint8_t>> seen;  // [queries] [length, stored + length]; empty: a chain
  std::vector<std::vector<int32_t>> depth;  // [queries] [stored + length] of each node
  std::vector<std::vector<int32_t>> path;   // [rows] nodes from the root to each row's; of a tree
  int part = kBlock;  // rows of a KV head that one thread prepares
  std::vector<Task> tasks;
  bool picks = false;           // whether nothing but the picked rows goes through the last layer, ...
  std::vector<Task> last_tasks;  // ... and its attention's tasks then
  int scores = 0, heads = 0, sums = 0;  // most that a task needs
};

// Room for rows that a linear layer takes; bfloat: its weights.
inline void fit_inputs(OwnInputs& inputs, size_t rows, int columns, bool bfloat) {
  if (!bfloat || !kTwos)
    inputs.fit(rows, columns, columns, false);
  else if (kTiles)
    inputs.fit(tiled_rows(int(rows)), columns, tiled_columns(columns), true);
  else
    inputs.fit(rows, columns, 2 * steps_of<Two>(columns), true);
}

// Which of kBlock rows have values that are not finite: on a line of its own, for whoever writes it.
struct alignas(64) Broken {
  bool row[kBlock];
};

// What a pass needs room for, kept from pass to pass: [rows, ...], or of each thread.
struct Space {
  Team team;
  OwnInputs normed, wide, pair, mixed, inner, picked;
  Lines<float> x, fused, qkv, delta, scores, sums;
  Lines<float> picked_x;      // of the picked rows, where others end before
  Lines<float> logits;        // of passes whose tokens are drawn at once
  std::vector<Draws> draws;   // [threads]
  Lines<uint16_t> queries;    // [KV heads, rows, shared, head_dim], rounded
  std::vector<Broken> broken;  // [KV heads, rows / run.part]
  std::vector<Head> heads;
  std::vector<Stretch> wanted;  // by who called
  ToldPass pass;
  ToldChains chains;

  // Into this core's second cache: what the pass has driven out, and the caller needs next.
  void fetch_wanted() const {
    constexpr int kLine = 64;
    for (const Stretch& one : wanted) {
      const char *at = one.begin - uintptr_t(one.begin) % kLine, *end = one.begin + one.bytes;
      for (; at < end; at += kLine) __builtin_prefetch(at, 0, 2);
    }
  }

  void fit(const Model& model, const Step& step, const Run& run, bool late) {
    const size_t rows = std::max(step.rows, step.picked), size = model.head_dim;
    team.fit(model.threads, late);
    make_room(x, rows * model.hidden);
    const int attended = model.heads * model.head_dim, bfloat = model.head.bfloat;
    fit_inputs(normed, rows, model.hidden, bfloat);
    fit_inputs(mixed, rows, attended, bfloat);
    fit_inputs(inner, rows, model.inner, bfloat);
    fit_inputs(picked, step.picked, run.picks ? attended : model.hidden, bfloat);
    if (step.states) fit_inputs(pair, rows, 2 * model.hidden, bfloat);
    if (step.states && !step.fused) {
      fit_inputs(wide, rows, model.entry.fuse.columns, bfloat);
      make_room(fused, rows * model.hidden);
    }
    make_room(broken, size_t(up(int(rows), run.part)) * model.kv_heads);
    make_room(qkv, rows * (model.heads + 2 * model.kv_heads) * size);
    make_room(delta, rows * model.hidden);
    if (run.picks) make_room(picked_x, size_t(step.picked) * model.hidden);
    make_room(scores, size_t(run.scores) * model.threads);
    make_room(heads, size_t(run.heads) * model.threads);
    // (A tile has the rows behind a KV head's last one, too.)
    if (kTwos && model.bfloat) make_room(queries, (rows * model.heads + kTileRows) * size);
    make_room(sums, size_t(run.sums) * model.threads);
  }
};

std::vector<int32_t> slots_of(const Step& step, const Query& query, int block_size) {
  std::vector<int32_t> slots(query.start + query.stored + query.length);
  for (size_t at = 0, block = query.blocks; at < slots.size(); at += block_size, ++block)
    for (size_t i = at; i < std::min(at + block_size, slots.size()); ++i)
      slots[i] = step.blocks[block] * block_size + int32_t(i - at);
  return slots;
}

inline int padded(int count) { return (count + kBlock - 1) / kBlock * kBlock; }

std::vector<Span> whole_queries(const Step& step) {
  std::vector<Span> spans;
  for (int q = 0; q < step.queries; ++q) spans.push_back({q, 0, step.query[q].length});
  return spans;
}

// Picked rows that follow each other in a query are a span.
std::vector<Span> picked_spans(const Step& step, const Run& run) {
  std::vector<Span> spans;
  for (int i = 0; i < step.picked; ++i) {
    const int32_t row = step.pick[i];
    const auto next = std::upper_bound(run.first.begin(), run.first.end(), row);
    const int32_t query = int32_t(next - run.first.begin()) - 1, own = row - run.first[query];
    const bool follows = !spans.empty() && spans.back().query == query &&
                         spans.back().first + spans.back().rows == own;
    if (follows)
      ++spans.back().rows;
    else
      spans.push_back({query, own, 1});
  }
  return spans;
}

// Attention's tasks: as many KV heads of the same rows together as leave work for all threads, for
// their keys and values lie side by side.
std::vector<Task> share_out(const Model& model, const Step& step, const std::vector<Span>& spans,
                            Run& run) {
  const int shared = model.heads / model.kv_heads;
  const auto text = [&](const Query& query) {
    return padded(query.start + query.stored + query.length);
  };
  const auto at_once = [&](const Query& query) {
    return int(std::clamp<int64_t>(kMostScores / (int64_t(shared) * text(query)), 1, kRows));
  };
  int chunks = 0;
  for (const Span& span : spans) {
    const int rows = at_once(step.query[span.query]);
    chunks += (span.rows + rows - 1) / rows;
  }
  const auto even = [&](int heads) {
    const int tasks = chunks * (model.kv_heads / heads);
    return tasks % model.threads == 0 || tasks >= 4 * model.threads;
  };
  std::vector<Task> found;
  for (const Span& span : spans) {
    const Query& query = step.query[span.query];
    const int line = text(query), whole = at_once(query);
    for (int begin = 0; begin < span.rows; begin += whole) {
      const int rows = std::min(whole, span.rows - begin);
      const int most = int(std::max<int64_t>(1, kScores / (int64_t(rows) * shared * line)));
      int heads = model.kv_heads;
      while (heads > 1 && (model.kv_heads % heads || heads > most || !even(heads))) --heads;
      for (int head = 0; head < model.kv_heads; head += heads)
        found.push_back({span.query, span.first + begin, rows, head, heads});
      run.heads = std::max(run.heads, rows * shared * heads);
      // (A tile has the lines behind a KV head's last one, too.)
      const int lines = (heads - 1) * rows * shared + tiled_rows(rows * shared);
      run.scores = std::max(run.scores, lines * line);
      run.sums = std::max(run.sums, heads * tiled_rows(rows * shared) * sum_columns(model.head_dim));
    }
  }
  // By KV heads, as these are prepared: a thread's own keys and queries are in its own caches.
  const auto before = [](const Task& a, const Task& b) { return a.head < b.head; };
  std::stable_sort(found.begin(), found.end(), before);
  return found;
}

// Whether nothing but the picked rows is wanted of the last layer, and these are not all.
bool picks_only(const Model& model, const Step& step) {
  const auto* end = step.tap + step.taps;
  const bool all_hidden = step.normed || std::find(step.tap, end, model.layers) != end;
  return step.picks_hidden || (step.picked < step.rows && !all_hidden);
}

Run plan(const Model& model, const Step& step) {
  Run run;
  run.position.resize(step.rows);
  run.slot.resize(step.rows);
  run.seen.resize(step.queries);
  run.path.resize(step.rows);
  int row = 0;
  for (int q = 0; q < step.queries; ++q) {
    const Query& query = step.query[q];
    const int nodes = query.stored + query.length;
    run.first.push_back(row);
    run.slots.push_back(slots_of(step, query, model.block_size));
    std::vector<int32_t>& depth = run.depth.emplace_back(nodes);
    std::vector<uint8_t> above(query.parents < 0 ? 0 : size_t(nodes) * nodes);
    for (int node = 0; node < nodes; ++node) {
      const int parent = query.parents < 0 ? node - 1 : step.parents[query.parents + node];
      depth[node] = parent < 0 ? 0 : depth[parent] + 1;
      if (above.empty()) continue;
      uint8_t* own = &above[size_t(node) * nodes];
      if (parent >= 0) std::copy_n(&above[size_t(parent) * nodes], nodes, own);
      own[node] = 1;
    }
    if (!above.empty())
      run.seen[q].assign(above.begin() + size_t(query.stored) * nodes, above.end());
    for (int node = query.stored; node < nodes; ++node, ++row) {
      run.position[row] = query.start + depth[node];
      run.slot[row] = run.slots[q][query.start + node];
      for (int at = 0; at < node + 1 && !above.empty(); ++at)  // parents come first
        if (above[size_t(node) * nodes + at]) run.path[row].push_back(at);
    }
  }
  run.part = std::clamp(step.rows * model.kv_heads / model.threads, 1, kBlock);
  run.tasks = share_out(model, step, whole_queries(step), run);
  run.picks = picks_only(model, step);
  if (run.picks) run.last_tasks = share_out(model, step, picked_spans(step, run), run);
  return run;
}

}  // namespace
