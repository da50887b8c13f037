// Attention's way over the paged KV cache: block after block, with what comes next on its way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

constexpr int kBlock = 16;     // positions whose keys or values are read together
constexpr int kWidest = 1024;  // most columns of a head
constexpr int kPositionsAhead = 32;

// A row's query of one head, its scores or shares by position, and what it mixes of the values.
struct Head {
  const float* query;
  float *scores, *mixed;
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

}  // namespace
