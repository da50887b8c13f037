// Attention's way over the paged KV cache: block after block, with what comes next on its way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "tiles.h"

namespace {

constexpr int kBlock = 16;     // positions whose keys or values are read together
constexpr int kWidest = 1024;  // most columns of a head
// Positions that are on their way into the second cache, where more lines can be on their way at once
// (31 GB/s for 21 on Zen 4), and into the first one, from where tiles are loaded; 0: none.
#if TANDEM_TILES
constexpr int kFarPositions = 64, kNearPositions = 16;
#elif defined(__AVX512BF16__)
constexpr int kFarPositions = 32, kNearPositions = 0;
#else
constexpr int kFarPositions = 0, kNearPositions = 32;
#endif
constexpr int kPositionsAhead = std::max(kFarPositions, kNearPositions);

// A row's query of one head, its scores or shares by position, and what it mixes of the values.
struct Head {
  const float* query;
  float *scores, *mixed;
  float factor;  // of what it mixes, where shares do not add up to one
};

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
  int line;           // numbers from a head's scores to the next one's
  const std::vector<int32_t>* paths;  // [rows] where `text` is not all: which values behind it each
                                      // row sees
  uint16_t* queries;  // [kv_heads, as `tile_queries_size` or `two_queries_size` says]; null: by floats
  float* sums;        // [kv_heads, as `tile_sums_size` or `two_sums_size` says]
};

// Has memory bring what lies at a position into the first or the second cache: the addresses jump too
// often for the processor to see it by itself.
template <bool kNear, class W>
void fetch(const Attention<W>& task, const W* from, int at) {
  const W* line = from + size_t(task.slots[at]) * task.width;
  for (int i = 0; i < task.kv_heads * task.size; i += 64 / int(sizeof(W)))
    __builtin_prefetch(line + i, 0, kNear ? 3 : 2);
}

// What lies at a position or, behind the end, at the beginning of what is read next, if anything is.
template <bool kNear, class W>
void fetch(const Attention<W>& task, const W* from, const W* next, int at) {
  if (at < task.end)
    fetch<kNear>(task, from, at);
  else if (next && at - task.end < task.end)
    fetch<kNear>(task, next, at - task.end);
}

// The first keys, before any are read.
template <class W>
void fetch_beginning(const Attention<W>& task) {
  for (int at = 0; at < std::min(kPositionsAhead, task.end); ++at)
    fetch<kFarPositions == 0>(task, task.keys, at);
}

// Calls `use` with each block of positions and each KV head; `next` is what will be read when this
// has been.
template <class W, class Use>
void each_block(const Attention<W>& task, const W* from, const W* next, Use use) {
  for (int at = 0; at < task.end; at += kBlock)
    for (int head = 0; head < task.kv_heads; ++head) {
      // A few lines at a time: were all asked for at once, nothing else would go on meanwhile.
      for (int p = kBlock * head / task.kv_heads; p < kBlock * (head + 1) / task.kv_heads; ++p) {
        if (kFarPositions) fetch<false>(task, from, next, at + p + kFarPositions);
        if (kNearPositions) fetch<true>(task, from, next, at + p + kNearPositions);
      }
      use(at, head);
    }
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

const uint16_t kNoValues[kWidest] = {};

// Calls `use` with what each row sees of a KV head's values from `begin` on: the text's end, and
// its own path's nodes, in the order that they have in the text. It gets the row's first head, up
// to kMost values (zeros for others), how many they are, and which places their scores have.
template <int kMost, class Use>
void each_path(const Attention<uint16_t>& task, int begin, int kv_head, Use use) {
  const uint16_t* values = task.values + kv_head * task.size;
  for (int first = 0; first < task.count; first += task.shared) {
    const std::vector<int32_t>& path = task.paths[first / task.shared];
    const int end = task.text + int(path.size());
    for (int at = begin; at < end; at += kMost) {
      const int some = std::min(kMost, end - at);
      const uint16_t* lines[kMost];
      int places[kMost];
      for (int i = 0; i < kMost; ++i) {
        const int node = at + i - task.text;
        places[i] = node < 0 || i >= some ? at + i : task.text + path[node];
        lines[i] = i < some ? values + size_t(task.slots[places[i]]) * task.width : kNoValues;
      }
      use(first, lines, some, places);
    }
  }
}

// Calls `some` with a number of heads that is known when this is compiled, until all had a turn.
template <int N, class Some>
inline void in_turns(int count, Some some) {
  int from = 0;
  for (; from + N <= count; from += N) some(std::integral_constant<int, N>(), from);
  if constexpr (N > 1)
    if (from < count) in_turns<N - 1>(count - from, [&](auto n, int at) { some(n, from + at); });
}

}  // namespace
