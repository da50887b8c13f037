// Linear layers: x by a transposed weight, for any processor.
#pragma once

#include "numbers.h"
#include "outputs.h"
#include "structures.h"
#include "team.h"
#include "tiles.h"
#include "twos.h"

namespace {

// Weights lie as they are read, so that memory is read in a straight line: a pair of registers' outputs,
// column after column. In bfloat16 an output of the first register shares a word with the second one's,
// or a column with the next one (Two). Every lane of a register is an output of its own, whose sum goes
// column by column. What is missing of the last outputs is zero, or as near to it as 8 bits are.
constexpr int kSums = kLanes == 16 ? 14 : 6;  // pairs of registers that hold sums at once; ...
template <class W>
constexpr int kMost = kIsEights<W> ? kSums - 2 : kSums;  // ... fewer where weights are made wider
// Bytes of weights that are on their way, and with so many rows that arithmetic takes about as long as
// memory: they wait in the second cache then, which with fewer rows or with more is slower.
constexpr int kAhead = 2048, kFarAhead = 8192;
constexpr int kFarFrom = 7, kFarTo = 20;
// Bytes of x that are asked for at once, and of a thread's first weights.
constexpr size_t kInputAhead = 48 << 10, kFirstAhead = 16 << 10;

inline int64_t packed_size(int rows, int columns, bool gated) {
  return int64_t(pairs_of(rows, gated)) * kOutputs * columns;
}

// W: as a column is stored.
template <class W, class Source>
void pack(const Source* weight, int rows, int columns, bool gated, W* to, int lowest = 0) {
  const int steps = steps_of<W>(columns);
#pragma omp parallel for schedule(static)
  for (int place = 0; place < pairs_of(rows, gated) * kOutputs; ++place) {
    const int row = row_at(place, rows, gated);
    const int lane = place % kLanes, high = place % kOutputs / kLanes;
    const int in_word = std::is_same_v<W, uint16_t> ? 2 * lane + high : high * kLanes + lane;
    W* out = to + size_t(place / kOutputs) * steps * kOutputs + in_word;
    for (int k = 0; k < steps; ++k)
      out[size_t(k) * kOutputs] =
          row < 0 ? W{} : step_at<W>(weight + size_t(row) * columns, k, columns, lowest);
  }
}

// lowest: of eights, as of `widened`.
inline Pair load_pair(const float* from, Words) { return {load(from), load(from + kLanes)}; }
inline Pair load_pair(const uint16_t* from, Words) {
  const Words words = *reinterpret_cast<const Words*>(from);
  return {reinterpret_cast<Floats>(words << 16), reinterpret_cast<Floats>(words & 0xffff0000u)};
}

inline Pair load_pair(const Two* from, Words lowest) {
  return load_pair(reinterpret_cast<const float*>(from), lowest);
}
#if defined(__AVX512BF16__)
inline Pair load_pair(const Eights* from, Words lowest) {
  return {widened(from, lowest), widened(from + kLanes, lowest)};
}
#endif

// A pair of outputs.
template <class W>
struct Group {
  const W* weights;
  int steps;  // columns, or twos of them
  const Outputs& outputs;
  int index;  // among pairs
};

// What is asked for while a group is multiplied: a line of memory for each line that is read, every
// `stride` bytes, so that memory is at work while weights in the cache are read once more.
struct Ahead {
  const char* from;
  int stride;
  bool far;  // into the second cache
};

// A group's outputs for M rows from `row` on, whose x is given. (In a function of its own no other
// values take the sums' registers.)
template <class W, int M, bool kFar>
__attribute__((noinline)) void tile(const Group<W>& group, Ahead ahead, const Input<W>* x,
                                    size_t row) {
  constexpr bool kFull = M == kSums;  // no register is left
  // Steps: fewer instructions, and more registers unless sums stay where they are.
  constexpr int kAtOnce = kFull && !kFewRegisters ? 1 : 4;
  constexpr int kLines = kAtOnce * kOutputs * sizeof(W) / 64;
  // (By twos few rows are slower for it: there the processor sees by itself what comes next.)
  constexpr bool kAsks = !kIsTwo<W> || M > 3;
  // An address is a register and, if need be, once or twice another one: three rows from one pointer.
  // With a register for each row some would have to be read from memory at every step.
  constexpr int kNear = kFewRegisters ? 3 : M;
  Pair sums[M] = {};
  const int steps = group.steps;
  size_t apart = steps;  // rows of x
  const W* w = group.weights;
  const Words lowest = Words{} + (uint32_t(group.outputs.matrix.lowest) << 7) * 0x10001u;
  const Input<W>* later = x + kNear * apart;  // the rows from kNear on
  const auto column = [&](int k) {
    const Pair weights = load_pair(w + k * kOutputs, lowest);
    for (int m = 0; m < M; ++m) {
      const Floats own = all((m < kNear ? x : later)[m % kNear * apart + k]);
      sums[m].low = add_product<W, kFull>(own, weights.low, sums[m].low);
      sums[m].high = add_product<W, kFull>(own, weights.high, sums[m].high);
    }
  };
  int k = 0;
#pragma GCC unroll 1
  for (; k + kAtOnce <= steps; k += kAtOnce, x += kAtOnce, later += kAtOnce, w += kAtOnce * kOutputs) {
    if constexpr (kFewRegisters)
      asm("" : "+r"(apart));  // or the compiler works out all rows' places before the loop
    for (int line = 0; kAsks && line < kLines; ++line)
      __builtin_prefetch(ahead.from + line * ahead.stride, 0, kFar ? 2 : 3);
    ahead.from += kLines * ahead.stride;
#pragma GCC unroll 4
    for (int i = 0; i < kAtOnce; ++i) column(i);
  }
#pragma GCC unroll 1
  for (; k < steps; ++k, ++x, ++later, w += kOutputs) column(0);
  Pair found[M];  // (Of the sums themselves no address is taken: they are nowhere but in registers.)
#pragma GCC unroll 16
  for (int m = 0; m < M; ++m) found[m] = sums[m];
  group.outputs.put_pairs(row, M, group.index, found);
}

template <class W, int M = 1>
void tiles(int rows, const Group<W>& group, const Ahead& ahead, const Input<W>* x, size_t row) {
  if constexpr (M < kMost<W>)
    if (rows > M) return tiles<W, M + 1>(rows, group, ahead, x, row);
  constexpr bool kMayBeFar = kIsTwo<W> && M >= kFarFrom;
  if (kMayBeFar && ahead.far) return tile<W, M, kMayBeFar>(group, ahead, x, row);
  tile<W, M, false>(group, ahead, x, row);
}

// Asks for so many bytes, of which the second cache is to have the far ones.
template <bool kFar>
void ask_for(const void* from, size_t bytes) {
  const char *at = static_cast<const char*>(from), *end = at + bytes;
  for (; at < end; at += 64) __builtin_prefetch(at, 0, kFar ? 2 : 3);
}

// The first weights that a thread will read of a matrix, whose columns are steps as W's are.
template <class W>
void ask_for_first(const Matrix& matrix) {
  const size_t step = !kIsTwo<W> ? sizeof(W) : matrix.lowest ? sizeof(Eights) : sizeof(Two);
  const size_t size = step * kOutputs * steps_of<W>(matrix.columns);
  const int group = Team::first(pairs_of(matrix.rows, matrix.gated));
  ask_for<true>(static_cast<const char*>(matrix.weight) + group * size, std::min(size, kFirstAhead));
}

// All rows while a group's weights are in the cache; the next group's come meanwhile, and behind the last
// one the first of the next matrix.
template <class W>
void multiply_as(Team& team, const Matrix& matrix, const Input<W>* x, int rows, const Outputs& outputs,
                 const Matrix* next) {
  if (rows == 0) return;
  const int groups = pairs_of(matrix.rows, matrix.gated), blocks = up(rows, kMost<W>);
  const int steps = steps_of<W>(matrix.columns);
  const bool far = kIsTwo<W> && rows >= kFarFrom && rows <= kFarTo;
  const size_t size = size_t(kOutputs) * steps;
  // Most of it has just been written by other cores: line by line that takes long, up to 200 ns each.
  ask_for<false>(x, std::min(size_t(rows) * steps * sizeof(*x), kInputAhead));
  const auto multiply_group = [&](int index) {
    const Group<W> group{static_cast<const W*>(matrix.weight) + index * size, steps, outputs, index};
    const char* own = reinterpret_cast<const char*>(group.weights);
    const int stride = std::max(1, 64 / blocks);
    Ahead ahead{own + (blocks > 1 ? size * sizeof(W) : far ? kFarAhead : kAhead), stride, far};
    for (int block = 0; block < blocks; ++block) {
      const int64_t row = rows * block / blocks, end = rows * (block + 1) / blocks;
      tiles<W>(int(end - row), group, ahead, x + row * steps, row);
      ahead.from += int64_t(size) * sizeof(W) / 64 * stride;
    }
  };
  team.each(groups, multiply_group, [&] {
    if (next) ask_for_first<W>(*next);
  });
}

#if defined(__AVX512BF16__)
const bool kEights = !kTiles;
inline void multiply_eights(Team& team, const Matrix& matrix, const Inputs& x, int rows,
                            const Outputs& outputs, const Matrix* next) {
  multiply_as<Eights>(team, matrix, static_cast<const Two*>(x.at()), rows, outputs, next);
}
#else
constexpr bool kEights = false;
inline void multiply_eights(Team&, const Matrix&, const Inputs&, int, const Outputs&, const Matrix*) {}
#endif

}  // namespace
