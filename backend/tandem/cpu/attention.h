// Attention of a query's rows, a draft tree's nodes among them, over the paged KV cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>

#include "batch.h"
#include "numbers.h"
#include "tile_attention.h"
#include "vector_attention.h"

namespace {

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

// The scores of a row's head to shares of what the row sees.
template <class W>
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
  head.factor = softmax<Factor<W>>(scores, whole, padded(end), scale, position);
}

// The heads of a task's rows, [KV heads, rows, shared], with room for their scores.
void list_heads(const Model& model, size_t first, Task task, int end, Space& space, float* scores,
                Head* heads) {
  const int size = model.head_dim, shared = model.heads / model.kv_heads;
  const size_t width = size_t(model.heads + 2 * model.kv_heads) * size;
  for (int kv_head = task.head; kv_head < task.head + task.heads; ++kv_head)
    for (size_t row = first; row < first + task.rows; ++row)
      for (int head = kv_head * shared; head < (kv_head + 1) * shared; ++head, scores += padded(end))
        *heads++ = {&space.qkv[row * width + head * size], scores, row, head * size, 1};
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
void score_all(const Attention<W>& task, Coming<W>& coming) {
  if constexpr (kRounds<W>)
    if (tiles_attend(task.size)) return score_by_tiles(task, coming);
  score_by_vectors<Factor<W>>(task, coming);
}

// What each head mixes, of sums that are zero before.
template <class W>
void sum_values(const Attention<W>& task, Coming<W>& coming) {
  if constexpr (kRounds<W>)
    if (tiles_attend(task.size)) return mix_by_tiles(task, coming);
  mix_by_vectors<Factor<W>>(task, coming);
}

template <class W>
void mix_all(const Attention<W>& task, Coming<W>& coming, OwnInputs& mixed) {
  const int columns = sum_columns(task.size), heads = tiled_rows(task.count);
  std::fill_n(task.sums, size_t(task.kv_heads) * heads * columns, 0.0f);
  sum_values(task, coming);
  for (int kv_head = 0; kv_head < task.kv_heads; ++kv_head)
    for (int index = 0; index < task.count; ++index) {
      const Head& head = task.heads[kv_head * task.count + index];
      const float* sums = task.sums + size_t(kv_head * heads + index) * columns;
      for (int i = 0; i < task.size; i += kLanes)
        mixed.put(head.row, head.column + i, load(sums + i) * head.factor, task.size - i);
    }
}

// Whether all values of a task's rows, from `first` on, are.
bool all_finite(const Space& space, const Run& run, int rows, const Task& task, size_t first) {
  for (int head = task.head; head < task.head + task.heads; ++head)
    for (size_t row = first; row < first + task.rows; ++row)
      if (space.broken[head * up(rows, run.part) + row / run.part].row[row % run.part]) return false;
  return true;
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
  const bool clean = chain && all_finite(space, run, step.rows, task, first);
  const auto own_paths = chain_paths(chain && !clean ? task.rows : 0);
  Head* heads = space.heads.data() + run.heads * thread;
  list_heads(model, first, task, end, space, space.scores.data() + run.scores * thread, heads);
  Attention<W> attention{};
  attention.keys = static_cast<const W*>(layer.cache) + size_t(task.head) * kBlock * size;
  attention.values = attention.keys + size_t(model.kv_heads) * kBlock * size;
  attention.slots = run.slots[task.query].data();
  attention.together = model.block_size % kBlock == 0;
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
  attention.apart = size_t(step.rows) * shared * size;
  attention.queries = space.queries.data() + task.head * attention.apart + first * shared * size;
  attention.sums = space.sums.data() + run.sums * thread;
  Coming<W> coming(attention);
  score_all(attention, coming);
  for (int index = 0; index < attention.kv_heads * attention.count; ++index)
    share<W>(model, query, run, task, task.first + index % attention.count / shared, end,
          heads[index]);
  mix_all(attention, coming, space.mixed);
  stop_tiles();
}

}  // namespace
