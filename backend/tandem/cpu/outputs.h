// Where a linear layer's outputs are, packed and put: those of two registers side by side, a pair. Of
// gates, and what they are the gates of, the first register has the ones and the second the others, so
// that one can be multiplied by the other where both have been summed.
#pragma once

#include "inputs.h"
#include "numbers.h"
#include "structures.h"

namespace {

constexpr int kOutputs = 2 * kLanes;

inline int up(int count, int by) { return (count + by - 1) / by; }

inline int pairs_of(int rows, bool gated) { return gated ? up(rows / 2, kLanes) : up(rows, kOutputs); }

// The row of a weight that is packed at a place among those of all pairs, or -1: there is none, but
// zeros.
inline int row_at(int place, int rows, bool gated) {
  if (!gated) return place < rows ? place : -1;
  const int half = rows / 2, own = place / kOutputs * kLanes + place % kLanes;
  return own < half ? own + place % kOutputs / kLanes * half : -1;
}

inline Floats with_bias(Floats sums, const float* bias, int count) {
  if (!bias) return sums;
  return sums + load_some(bias, count);
}

struct Pair {
  Floats low, high;
};

// What becomes of sums: y [rows, outputs], or of gates and what they open half as many, the next layer's
// input.
struct Outputs {
  const Matrix& matrix;
  float* y;
  OwnInputs* opened = nullptr;

  // So many rows' pairs of one place.
  void put_pairs(size_t row, int count, int index, const Pair* sums) const {
    if (opened || matrix.gated || matrix.bias || (index + 1) * kOutputs > matrix.rows) {
      for (int i = 0; i < count; ++i) put_pair(row + i, index, sums[i].low, sums[i].high);
      return;
    }
    float* own = y + row * matrix.rows + index * kOutputs;
    for (int i = 0; i < count; ++i, own += matrix.rows) {
      store(own, sums[i].low);
      store(own + kLanes, sums[i].high);
    }
  }

  void put_pair(size_t row, int index, Floats first, Floats second) const {
    const int half = matrix.rows / 2;
    const int at = index * (matrix.gated ? kLanes : kOutputs);
    const int apart = matrix.gated ? half : kLanes;  // from a register's outputs to the other's
    const int count = (matrix.gated ? half : matrix.rows) - at;
    const int others = matrix.gated ? count : count - kLanes;
    const float* bias = matrix.bias ? matrix.bias + at : nullptr;
    first = with_bias(first, bias, count);
    second = with_bias(second, bias ? bias + apart : nullptr, others);
    if (opened) return opened->put(row, at, silu(first) * second, count);
    float* own = y + row * matrix.rows + at;
    store_some(own, first, count);
    store_some(own + apart, second, others);
  }
};

}  // namespace
