// Attention of a query's rows, a draft tree's nodes among them, over the paged KV cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>

#include "batch.h"
#include "numbers.h"

namespace {

constexpr int kFew = 3;  // heads that read each key but once, all together

template <class W>
Block<float> widened(const Block<W>& block, int size, float* wide) {
  Block<float> found;
  for (int p = 0; p < kBlock; ++p, wide += size) {
    widen(block.line[p], size, wide);
    found.line[p] = wide;
  }
  return found;
}

// As `each_block`, with the block's lines and the head's queries. What many read is widened first.
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

// Turns a row's scores into shares, stored as S in the same place, and returns what to multiply
// them by, so that they add up to one. Up to `whole` a score's place is its position in the text;
// behind it, `position` says. Sums go by position, so that a tree's path sums as the text will.
template <class S, class Position>
float softmax(float* line, int whole, int end, float scale, Position position) {
  Floats most = all(-INFINITY);
  for (int i = 0; i < end; i += kLanes) most = greater(load(line + i), most);
  const float limit = greatest(most);
  S* shares = reinterpret_cast<S*>(line);
  Floats sums = {};
  for (int i = 0; i < end; i += kLanes) {
    const Floats scores = load(line + i);
    store(shares + i, std::is_same_v<S, float> ? exp((scores - limit) * scale)
                                               : power_of_two((scores - limit) * (scale * kLog2OfE)));
    if (i < whole) sums += load(shares + i);
  }
  for (int i = whole; i < end; ++i) sums[position(i) % kLanes] += widen(shares[i]);
  return 1 / sum(sums);
}

template <class W>
void score_all(const Attention<W>& task) {
  fetch_beginning(task);
  if constexpr (std::is_same_v<W, uint16_t>)
    if (task.queries) return kTiles ? score_by_tiles(task) : score_by_twos(task);
  each_line(task, task.keys, task.values, [&](int at, const Head* heads, const auto& keys) {
    in_turns<kFew>(task.count, [&](auto n, int from) {
      score<decltype(n)::value>(heads + from, keys, task.size, at);
    });
  });
}

template <class W>
void mix_all(const Attention<W>& task) {
  if constexpr (std::is_same_v<W, uint16_t>)
    if (task.queries) return kTiles ? mix_by_tiles(task) : mix_by_twos(task);
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
           Head& head) {
  float* scores = head.scores;
  const std::vector<uint8_t>& seen = run.seen[task.query];
  const std::vector<int32_t>& depth = run.depth[task.query];
  const int nodes = query.stored + query.length;
  const int seen_all = seen.empty() ? query.start + query.stored + row + 1 : end;
  std::fill(scores + seen_all, scores + padded(end), -INFINITY);
  for (int node = 0; node < (seen.empty() ? 0 : nodes); ++node)
    if (!seen[size_t(row) * nodes + node]) scores[query.start + node] = -INFINITY;
  const int whole = seen.empty() ? padded(end) : query.start - query.start % kLanes;
  const float scale = 1 / std::sqrt(float(model.head_dim));
  const auto position = [&](int at) {
    return at < query.start || at >= end ? at : query.start + depth[at - query.start];
  };
  if (tiles_attend(model) || twos_attend(model)) {
    head.factor = softmax<uint16_t>(scores, whole, padded(end), scale, position);
    // A tile has the shares of two blocks.
    std::fill_n(reinterpret_cast<uint16_t*>(scores) + padded(end), kBlock, uint16_t(0));
    return;
  }
  const float factor = softmax<float>(scores, whole, padded(end), scale, position);
  for (int i = 0; i < padded(end); i += kLanes) store(scores + i, load(scores + i) * factor);
}

// The heads of a task's rows, [KV heads, rows, shared], with room for their scores.
void list_heads(const Model& model, size_t first, Task task, int end, Space& space, float* scores,
                Head* heads) {
  const int size = model.head_dim, shared = model.heads / model.kv_heads;
  const size_t width = size_t(model.heads + 2 * model.kv_heads) * size;
  for (int kv_head = task.head; kv_head < task.head + task.heads; ++kv_head)
    for (size_t row = first; row < first + task.rows; ++row)
      for (int head = kv_head * shared; head < (kv_head + 1) * shared; ++head, scores += padded(end))
        *heads++ = {&space.qkv[row * width + head * size], scores,
                    &space.mixed[(row * model.heads + head) * size], 1};
}

// What each of a chain's rows sees of the chain.
std::vector<std::vector<int32_t>> chain_paths(int rows) {
  std::vector<std::vector<int32_t>> paths(rows);
  for (int row = 0; row < rows; ++row) {
    paths[row].resize(row + 1);
    std::iota(paths[row].begin(), paths[row].end(), 0);
  }
  return paths;
}

template <class W>
void attend(const Model& model, const Layer& layer, const Step& step, const Run& run, Task task,
            Space& space) {
  const Query& query = step.query[task.query];
  const size_t thread = omp_get_thread_num(), first = run.first[task.query] + task.first;
  const int size = model.head_dim, shared = model.heads / model.kv_heads;
  const int last = query.start + query.stored + task.first + task.rows;
  const bool chain = run.seen[task.query].empty();
  const int end = chain ? last : query.start + query.stored + query.length;
  // A value that is not finite would reach rows before it, though by a share of zero.
  const uint8_t* broken = &space.broken[first];
  const bool clean = chain && std::find(broken, broken + task.rows, 1) == broken + task.rows;
  const auto own_paths = chain_paths(chain && !clean ? task.rows : 0);
  Head* heads = space.heads.data() + run.heads * thread;
  list_heads(model, first, task, end, space, space.scores.data() + run.scores * thread, heads);
  Attention<W> attention{};
  attention.keys = static_cast<const W*>(layer.cache) + task.head * size;
  attention.values = attention.keys + model.kv_heads * size;
  attention.slots = run.slots[task.query].data();
  attention.width = 2 * model.kv_heads * size;
  attention.size = size;
  attention.kv_heads = task.heads;
  attention.end = end;
  attention.text = clean ? end : chain ? last - task.rows : query.start;
  attention.heads = heads;
  attention.count = task.rows * shared;
  attention.shared = shared;
  attention.line = padded(end);
  attention.paths = chain ? own_paths.data() : &run.path[first];
  if (run.queries) {
    attention.queries = &space.queries[run.queries * thread];
    attention.sums = &space.sums[run.sums * thread];
  }
  score_all(attention);
  for (int index = 0; index < attention.kv_heads * attention.count; ++index)
    share(model, query, run, task, task.first + index % attention.count / shared, end,
          heads[index]);
  mix_all(attention);
  if (run.queries && kTiles) stop_tiles();
}

}  // namespace
