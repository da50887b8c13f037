// Attention of a query's rows, a draft tree's nodes among them, over the paged KV cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>

#include "batch.h"
#include "numbers.h"

namespace {

constexpr int kPositionsAhead = 32;
constexpr int kFew = 3;  // heads that read each key but once, all together

// Some KV heads for some rows of a query: over one reading of their keys and one of their values.
template <class W>
struct Attention {
  const W *keys, *values;  // of the first KV head, in slot 0
  const int32_t* slots;    // [end]
  int width;               // from slot to slot
  int size;                // of a head
  int kv_heads;
  int end;   // positions that any row may see
  int text;  // positions whose place in the text is their own, and whose values are finite where not
             // all rows see them: those that a row does not see add zeros
  const Head* heads;  // [kv_heads, count]
  int count, shared;  // heads of all rows, and of one
  const std::vector<int32_t>* paths;  // [rows] where `text` is not all: which values behind it each
                                      // row sees
  uint16_t* queries;  // [kv_heads, as `queries_size` says]; null: the matrix unit does nothing
  float* sums;        // [kv_heads, as `sums_size` says]
};

// Has memory bring what lies at a position: the addresses jump too often for the processor to see
// it by itself.
template <class W>
void fetch(const Attention<W>& task, const W* from, int at) {
  const W* line = from + size_t(task.slots[at]) * task.width;
  for (int i = 0; i < task.kv_heads * task.size; i += 64 / int(sizeof(W)))
    __builtin_prefetch(line + i);
}

// A KV head's keys or values from a position on; what lies behind the end is not used.
template <class T>
struct Block {
  const T* line[kBlock];
};
template <class W>
Block<W> block_at(const Attention<W>& task, const W* from, int begin) {
  Block<W> block;
  for (int p = 0; p < kBlock; ++p)
    block.line[p] = from + size_t(task.slots[std::min(begin + p, task.end - 1)]) * task.width;
  return block;
}
template <class W>
Block<float> widened(const Block<W>& block, int size, float* wide) {
  Block<float> found;
  for (int p = 0; p < kBlock; ++p, wide += size) {
    widen(block.line[p], size, wide);
    found.line[p] = wide;
  }
  return found;
}

// Calls `use` with each block of positions and each KV head; `next` is what will be read when this
// has been.
template <class W, class Use>
void each_block(const Attention<W>& task, const W* from, const W* next, Use use) {
  for (int at = 0; at < task.end; at += kBlock)
    for (int head = 0; head < task.kv_heads; ++head) {
      // A few lines at a time: were all asked for at once, nothing else would go on meanwhile.
      const int later = at + kPositionsAhead;
      for (int p = kBlock * head / task.kv_heads; p < kBlock * (head + 1) / task.kv_heads; ++p)
        if (later + p < task.end)
          fetch(task, from, later + p);
        else if (next && later + p - task.end < task.end)
          fetch(task, next, later + p - task.end);
      use(at, head);
    }
}

// The same, with the block's lines and the head's queries. What many read is widened first.
template <class W, class Use>
void each_line(const Attention<W>& task, const W* from, const W* next, Use use) {
  float wide[kBlock * kWidest];
  each_block(task, from, next, [&](int at, int head) {
    const Head* heads = task.heads + head * task.count;
    const Block<W> block = block_at(task, from + head * task.size, at);
    task.count > kFew ? use(at, heads, widened(block, task.size, wide)) : use(at, heads, block);
  });
}

// Products of N heads' queries with the keys of a block from position `at` on.
template <int N, class T>
__attribute__((noinline)) void score(const Head* heads, const Block<T>& keys, int size, int at) {
  const int whole = size - size % kLanes;
  for (int first = 0; first < kBlock; first += 4) {
    Floats sums[N][4] = {};
    const auto part = [&](int i, auto load_part) {
      for (int p = 0; p < 4; ++p) {
        const Floats key = load_part(keys.line[first + p] + i);
        for (int n = 0; n < N; ++n)
          sums[n][p] = fused(load_part(heads[n].query + i), key, sums[n][p]);
      }
    };
    for (int i = 0; i < whole; i += kLanes) part(i, [](const auto* from) { return load(from); });
    if (whole < size)
      part(whole, [&](const auto* from) { return load_some(from, size - whole); });
    for (int n = 0; n < N; ++n) sum_four(sums[n], heads[n].scores + at + first);
  }
}

// to += share * from
template <class T>
void add_share(float share, const T* from, int width, float* to) {
  const int whole = width - width % kLanes;
  for (int i = 0; i < whole; i += kLanes)
    store(to + i, fused(all(share), load(from + i), load(to + i)));
  for (int i = whole; i < width; ++i)
    to[i] = fused(all(share), all(widen(from[i])), all(to[i]))[0];
}

// Adds `count` values from position `at` on to what N heads mix, by their shares.
template <int N, class T>
__attribute__((noinline)) void mix(const Head* heads, const Block<T>& values, int size, int at,
                                   int count) {
  const int whole = size - size % kLanes;
  int i = 0;
  const auto columns = [&](auto parts) {
    constexpr int kParts = decltype(parts)::value;
    Floats sums[N][kParts];
    for (int n = 0; n < N; ++n)
      for (int k = 0; k < kParts; ++k) sums[n][k] = load(heads[n].mixed + i + k * kLanes);
    for (int p = 0; p < count; ++p)
      for (int k = 0; k < kParts; ++k) {
        const Floats value = load(values.line[p] + i + k * kLanes);
        for (int n = 0; n < N; ++n)
          sums[n][k] = fused(all(heads[n].scores[at + p]), value, sums[n][k]);
      }
    for (int n = 0; n < N; ++n)
      for (int k = 0; k < kParts; ++k) store(heads[n].mixed + i + k * kLanes, sums[n][k]);
    i += kParts * kLanes;
  };
  constexpr int kMost = N <= 2 ? 4 : 2;  // that many sums fit the registers
  while (i + kMost * kLanes <= whole) columns(std::integral_constant<int, kMost>());
  while (i < whole) columns(std::integral_constant<int, 1>());
  for (int p = 0; p < count && whole < size; ++p)
    for (int n = 0; n < N; ++n)
      add_share(heads[n].scores[at + p], values.line[p] + whole, size - whole,
                heads[n].mixed + whole);
}

// Calls `some` with a number of heads that is known when this is compiled, until all had a turn.
template <int N, class Some>
inline void in_turns(int count, Some some) {
  int from = 0;
  for (; from + N <= count; from += N) some(std::integral_constant<int, N>(), from);
  if constexpr (N > 1)
    if (from < count) in_turns<N - 1>(count - from, [&](auto n, int at) { some(n, from + at); });
}

// Turns a row's scores into shares. Up to `whole` a score's place is its position in the text;
// behind it, `position` says. Sums go by position, so that a tree's path sums as the text will.
template <class Position>
void softmax(float* line, int whole, int end, float scale, Position position) {
  Floats most = all(-INFINITY);
  for (int i = 0; i < end; i += kLanes) {
    const Floats scores = load(line + i);
    most = scores > most ? scores : most;
  }
  float greatest = most[0];
  for (int lane = 1; lane < kLanes; ++lane) greatest = std::max(greatest, most[lane]);
  Floats sums = {};
  for (int i = 0; i < end; i += kLanes) {
    const Floats share = exp((load(line + i) - greatest) * scale);
    store(line + i, share);
    if (i < whole) sums += share;
  }
  for (int i = whole; i < end; ++i) sums[position(i) % kLanes] += line[i];
  const float factor = 1 / sum(sums);
  for (int i = 0; i < end; i += kLanes) store(line + i, load(line + i) * factor);
}

void score_by_tiles(const Attention<uint16_t>& task) {
  const int size = queries_size(task.count, task.size);
  for (int head = 0; head < task.kv_heads; ++head)
    lay_out_queries(task.heads + head * task.count, task.count, task.size,
                    task.queries + head * size);
  alignas(64) uint16_t last[kBlock * kWidest];
  each_block(task, task.keys, task.values, [&](int at, int head) {
    const uint16_t* keys = task.keys + size_t(task.slots[at]) * task.width + head * task.size;
    const int some = task.end - at, stride = some < kBlock ? task.size : task.width;
    if (some < kBlock) {  // what lies behind the end would have to come from memory
      for (int p = 0; p < some; ++p)
        std::copy_n(keys + size_t(p) * task.width, task.size, last + p * task.size);
      keys = last;
    }
    score_tiles(task.heads + head * task.count, task.queries + head * size, task.count, keys, stride,
                task.size, at);
  });
}

template <class W>
void score_all(const Attention<W>& task) {
  for (int at = 0; at < std::min(kPositionsAhead, task.end); ++at) fetch(task, task.keys, at);
  if constexpr (std::is_same_v<W, uint16_t>)
    if (task.queries) return score_by_tiles(task);
  each_line(task, task.keys, task.values, [&](int at, const Head* heads, const auto& keys) {
    in_turns<kFew>(task.count, [&](auto n, int from) {
      score<decltype(n)::value>(heads + from, keys, task.size, at);
    });
  });
}

const uint16_t kNoValues[kWidest] = {};

// What rows mix from `begin` on: the text's end, and each row its own path's nodes, in the order that
// they have in the text. Tiles are in use, of `rows` rows, by which `shared` divides.
void mix_paths(const Attention<uint16_t>& task, int begin, int kv_head, int rows, float* sums) {
  const uint16_t* values = task.values + kv_head * task.size;
  for (int first = 0; first < task.count; first += task.shared) {
    const Head* heads = task.heads + kv_head * task.count + first;
    const std::vector<int32_t>& path = task.paths[first / task.shared];
    const int end = task.text + int(path.size());
    for (int at = begin; at < end; at += kMixed) {
      const int some = std::min(kMixed, end - at);
      const uint16_t* lines[kMixed];
      int places[kMixed];
      float shares[kMixed];
      for (int i = 0; i < kMixed; ++i) {
        const int node = at + i - task.text;
        places[i] = node < 0 || i >= some ? at + i : task.text + path[node];
        lines[i] = i < some ? values + size_t(task.slots[places[i]]) * task.width : kNoValues;
      }
      const auto own = [&](int head) {
        for (int i = 0; i < some; ++i) shares[i] = heads[head].scores[places[i]];
        return shares;
      };
      mix_tiles(own, task.shared, some, lines, task.size, rows, sums + first * task.size);
    }
  }
}

void mix_by_tiles(const Attention<uint16_t>& task) {
  const int size = sums_size(task.count, task.size), rows = tile_heads(task.count);
  const bool by_paths = task.text < task.end;
  const int whole = by_paths ? task.text - task.text % kMixed : task.end;
  const uint16_t* none = nullptr;
  std::fill_n(task.sums, task.kv_heads * size, 0.0f);
  each_block(task, task.values, none, [&](int at, int head) {
    if (at % kMixed || at >= whole) return;
    const uint16_t* lines[kMixed];
    for (int i = 0; i < kMixed; ++i)
      lines[i] = at + i >= whole ? kNoValues
                                 : task.values + size_t(task.slots[at + i]) * task.width +
                                       head * task.size;
    const Head* heads = task.heads + head * task.count;
    mix_tiles([&](int n) { return heads[n].scores + at; }, task.count,
              std::min(kMixed, whole - at), lines, task.size, rows, task.sums + head * size);
  });
  int row_heads = tile_heads(task.shared);
  while (task.shared % row_heads) --row_heads;
  if (by_paths) use_attention_tiles(row_heads);
  for (int head = 0; by_paths && head < task.kv_heads; ++head)
    mix_paths(task, whole, head, row_heads, task.sums + head * size);
  for (int index = 0; index < task.kv_heads * task.count; ++index)
    put_in_order(task.sums + index / task.count * size + index % task.count * task.size, task.size,
                 task.heads[index].mixed);
}

template <class W>
void mix_all(const Attention<W>& task) {
  if constexpr (std::is_same_v<W, uint16_t>)
    if (task.queries) return mix_by_tiles(task);
  for (int index = 0; index < task.kv_heads * task.count; ++index)
    std::fill_n(task.heads[index].mixed, task.size, 0.0f);
  const W* none = nullptr;
  each_line(task, task.values, none, [&](int at, const Head* heads, const auto& values) {
    const int seen = std::max(0, std::min(kBlock, task.text - at));
    in_turns<4>(task.count, [&](auto n, int from) {
      mix<decltype(n)::value>(heads + from, values, task.size, at, seen);
    });
    for (int p = seen; p < std::min(kBlock, task.end - at); ++p)
      for (int index = 0; index < task.count; ++index) {
        // Zero: a node that the row does not see, whatever is stored there.
        const float share = heads[index].scores[at + p];
        if (share != 0) add_share(share, values.line[p], task.size, heads[index].mixed);
      }
  });
}

// The scores of a row's head to shares of what the row sees.
void share(const Model& model, const Query& query, const Run& run, Task task, int row, int end,
           float* scores) {
  const std::vector<uint8_t>& seen = run.seen[task.query];
  const std::vector<int32_t>& depth = run.depth[task.query];
  const int nodes = query.stored + query.length;
  for (int at = query.start; at < end; ++at) {
    const int node = at - query.start;
    const bool sees = seen.empty() ? node <= query.stored + row : seen[size_t(row) * nodes + node];
    if (!sees) scores[at] = -INFINITY;
  }
  std::fill(scores + end, scores + padded(end), -INFINITY);
  const int whole = seen.empty() ? padded(end) : query.start - query.start % kLanes;
  softmax(scores, whole, padded(end), 1 / std::sqrt(float(model.head_dim)), [&](int at) {
    return at < query.start || at >= end ? at : query.start + depth[at - query.start];
  });
}

template <class W>
void attend(const Model& model, const Layer& layer, const Step& step, const Run& run, Task task,
            Space& space) {
  const Query& query = step.query[task.query];
  const size_t thread = omp_get_thread_num();
  const int size = model.head_dim, shared = model.heads / model.kv_heads;
  const int width = 2 * model.kv_heads * size, qkv_width = width + model.heads * size;
  const int last = query.start + query.stored + task.first + task.rows;
  const bool chain = run.seen[task.query].empty();
  const int end = chain ? last : query.start + query.stored + query.length;
  float* scores = space.scores.data() + run.scores * thread;
  Head* heads = space.heads.data() + run.heads * thread;
  Head* next = heads;
  const size_t first = run.first[task.query] + task.first;
  for (int kv_head = task.head; kv_head < task.head + task.heads; ++kv_head)
    for (int row = 0; row < task.rows; ++row)
      for (int head = kv_head * shared; head < (kv_head + 1) * shared; ++head, ++next) {
        const size_t own = first + row;
        *next = {&space.qkv[own * qkv_width + head * size], scores + (next - heads) * padded(end),
                 &space.mixed[(own * model.heads + head) * size]};
      }
  // A value that is not finite would reach rows before it, though by a share of zero.
  const uint8_t* broken = &space.broken[first];
  const bool clean = chain && std::find(broken, broken + task.rows, 1) == broken + task.rows;
  std::vector<std::vector<int32_t>> paths(chain && !clean ? task.rows : 0);
  for (size_t row = 0; row < paths.size(); ++row) {
    paths[row].resize(row + 1);
    std::iota(paths[row].begin(), paths[row].end(), 0);
  }
  const W* keys = static_cast<const W*>(layer.cache) + task.head * size;
  const Attention<W> attention{keys,
                               keys + model.kv_heads * size,
                               run.slots[task.query].data(),
                               width,
                               size,
                               task.heads,
                               end,
                               clean ? end : chain ? last - task.rows : query.start,
                               heads,
                               task.rows * shared,
                               shared,
                               chain ? paths.data() : &run.path[first],
                               run.queries ? &space.queries[run.queries * thread] : nullptr,
                               run.queries ? &space.sums[run.sums * thread] : nullptr};
  if (run.queries) use_attention_tiles(tile_heads(attention.count));
  score_all(attention);
  for (int index = 0; index < attention.kv_heads * attention.count; ++index)
    share(model, query, run, task, task.first + index % attention.count / shared, end,
          heads[index].scores);
  mix_all(attention);
  if (run.queries) stop_tiles();
}

}  // namespace
