// How keys and values lie in the paged cache, and attention's way over them.
//
// Sixteen slots are a group, [keys and values, KV heads] pieces. What lies side by side in a piece are
// words of 4 bytes, each a float or two of bfloat16: of keys [columns, slots], two columns in a word,
// of values [slots, columns], two slots in a word. So they are read as they lie by floats, by products of
// two and by the matrix unit, and no sum goes over a register's lanes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "numbers.h"
#include "tiles.h"

namespace {

constexpr int kBlock = 16;     // slots of a group, or positions that are read together
constexpr int kWidest = 1024;  // most columns of a head
constexpr int kChunk = 128;    // positions of a KV head that are read before the next one's
constexpr int kAheadPositions = 64;  // that are on their way, of one KV head
// Into the second cache: more lines can be on their way there at once (31 GB/s for 21 on Zen 4).
#if defined(__AVX512BF16__)
constexpr bool kAheadFar = true;
#else
constexpr bool kAheadFar = false;
#endif

template <class W>
constexpr int kPerWord = 4 / sizeof(W);  // numbers
// Whether queries and shares go in rounded, and what they go in as.
template <class W>
constexpr bool kRounds = kTwos && std::is_same_v<W, uint16_t>;
template <class W>
using Factor = std::conditional_t<kRounds<W>, uint16_t, float>;

// Numbers from a slot's group to a piece of it; width: numbers of a slot.
inline size_t piece_at(int slot, int width, int piece, int size) {
  return size_t(slot / kBlock) * kBlock * width + size_t(piece) * kBlock * size;
}

// Of a piece of keys, or values.
template <class W>
inline W* key_number(W* piece, int slot, int column) {
  constexpr int kPer = kPerWord<W>;
  return piece + (column / kPer * kBlock + slot % kBlock) * kPer + column % kPer;
}
template <class W>
inline W* value_number(W* piece, int size, int slot, int column) {
  constexpr int kPer = kPerWord<W>;
  return piece + (slot % kBlock / kPer * size + column) * kPer + slot % kPer;
}

// A row's query of one head, its scores or shares by position, and where what it mixes of the values is.
struct Head {
  const float* query;
  float* scores;
  size_t row;    // among all rows, and...
  int column;    // ... in it, where what it mixes is
  float factor;  // of what it mixes, for shares do not add up to one
};

// Some KV heads for some rows of a query: over one reading of their keys and one of their values.
template <class W>
struct Attention {
  const W *keys, *values;  // of the first KV head, in the first group
  const int32_t* slots;    // [end]
  bool together;           // whether kBlock positions from a multiple of it on are a group
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
  const uint16_t* queries;  // [kv_heads, count, size] if they go in rounded, ...
  size_t apart;             // ... each KV head's so far from the one before
  float* sums;              // [kv_heads, `tiled_rows`, `sum_columns`]

  // Positions that are read of a KV head before the next one's.
  int chunk() const { return together ? kChunk : kBlock; }
  // Positions whose values are mixed for all rows at once; behind them go paths.
  int whole() const { return text < end ? text - text % kBlock : end; }
};

// A head's sums, with room for all of the last register.
inline int sum_columns(int size) { return up(size, kLanes) * kLanes; }

// A piece that is gathered. (A register may take what lies behind it.)
template <class W>
struct alignas(64) Room {
  W piece[kBlock * kWidest + kLanes * kPerWord<W>];
};

// What lies at the position's slot, or in its group.
template <class W>
inline const W* piece_of(const Attention<W>& task, const W* from, int slot, int head) {
  return from + piece_at(slot, task.width, head, task.size);
}

// What is on its way while pieces are read, in their order: keys, then values; chunk by chunk, in it KV
// head by KV head.
template <class W>
class Coming {
 public:
  explicit Coming(const Attention<W>& task) : task_(task), from_(task.together ? task.keys : nullptr) {
    for (int position = 0; position < kAheadPositions; position += kBlock) next();
  }

  // Another piece is being read. Has memory bring the next one: the addresses jump too often for the
  // processor to see it by itself.
  void next() {
    if (!from_) return;
    const W* piece = piece_of(task_, from_, task_.slots[at_], head_);
    for (int i = 0; i < kBlock * task_.size; i += 64 / int(sizeof(W)))
      __builtin_prefetch(piece + i, 0, kAheadFar ? 2 : 3);
    at_ += kBlock;
    if (at_ < std::min(begin_ + kChunk, task_.end)) return;
    if (++head_ == task_.kv_heads) head_ = 0, begin_ += kChunk;
    if (begin_ >= task_.end) from_ = from_ == task_.keys ? task_.values : nullptr, begin_ = 0;
    at_ = begin_;
  }

 private:
  const Attention<W>& task_;
  const W* from_;  // null behind the last one
  int begin_ = 0, head_ = 0, at_ = 0;
};

// Calls `use(begin, end, head)` with each chunk of positions and each KV head.
template <class W, class Use>
void each_chunk(const Attention<W>& task, Use use) {
  for (int begin = 0; begin < task.end; begin += task.chunk())
    for (int head = 0; head < task.kv_heads; ++head)
      use(begin, std::min(begin + task.chunk(), task.end), head);
}

// The keys from a position on. What lies behind the end is anything.
template <class W>
const W* keys_at(const Attention<W>& task, int at, int head, Room<W>& room) {
  if (task.together) return piece_of(task, task.keys, task.slots[at], head);
  for (int p = 0; p < std::min(kBlock, task.end - at); ++p) {
    const int slot = task.slots[at + p];
    const W* from = piece_of(task, task.keys, slot, head);
    for (int i = 0; i < task.size; ++i) *key_number(room.piece, p, i) = *key_number(from, slot, i);
  }
  return room.piece;
}

// Values of so many slots, and zeros behind them.
inline void gather_values(const Attention<float>& task, int head, const int32_t* slots, int count,
                          Room<float>& room) {
  for (int p = 0; p < kBlock; ++p) {
    float* to = room.piece + p * task.size;
    if (p >= count)
      std::fill_n(to, task.size, 0.0f);
    else
      std::copy_n(value_number(piece_of(task, task.values, slots[p], head), task.size, slots[p], 0),
                  task.size, to);
  }
}
inline void gather_values(const Attention<uint16_t>& task, int head, const int32_t* slots, int count,
                          Room<uint16_t>& room) {
  static const uint16_t zeros[2 * (kWidest + kLanes)] = {};
  for (int pair = 0; pair < kBlock / 2; ++pair) {
    const uint16_t* lines[2];  // what is the slot's is the lower half of each word from here on
    for (int i = 0; i < 2; ++i) {
      const int own = 2 * pair + i;
      lines[i] = own >= count ? zeros
                              : value_number(piece_of(task, task.values, slots[own], head), task.size,
                                             slots[own], 0);
    }
    uint16_t* to = room.piece + 2 * pair * task.size;
    for (int i = 0; i < task.size; i += kLanes)
      store_words(to + 2 * i, (load_words(lines[0] + 2 * i) & 0xffffu) | load_words(lines[1] + 2 * i) << 16);
  }
}

// The values from a position on and before `end`, and zeros.
template <class W>
const W* values_at(const Attention<W>& task, int at, int end, int head, Room<W>& room) {
  if (task.together && at + kBlock <= end) return piece_of(task, task.values, task.slots[at], head);
  gather_values(task, head, task.slots + at, std::min(kBlock, end - at), room);
  return room.piece;
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
