// Columns of a bfloat16 weight in twos, where the processor adds two products to a sum at once
// (AVX512_BF16): half as many instructions as with floats.
//
// It multiplies bfloat16 by bfloat16 and sums in float. So a linear layer's input is rounded to
// bfloat16, as it is where a model is computed in bfloat16 throughout.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "numbers.h"
#include "team.h"

namespace {

struct Two {
  uint16_t first, second;
};

template <class W>
constexpr bool kIsTwo = std::is_same_v<W, Two>;

// What a weight stored as W is multiplied by.
template <class W>
using Input = std::conditional_t<kIsTwo<W>, Two, float>;

// How many W a row's columns are.
template <class W>
constexpr int steps_of(int columns) {
  return kIsTwo<W> ? (columns + 1) / 2 : columns;
}

// The k-th of them.
template <class W, class Number>
W step_at(const Number* row, int k, int columns) {
  if constexpr (kIsTwo<W>)
    return {row[2 * k], 2 * k + 1 < columns ? row[2 * k + 1] : Number(0)};
  else
    return row[k];
}

// Numbers of all copies of x [rows, width], for so many rows and threads or fewer. Each thread makes
// its own of few rows: that takes less than waiting for the others, for lines that they have just
// written, and for its own to come back from there.
constexpr int kRoundedAlone = 32, kLine = 32;
inline bool rounds_alone(int rows, int threads) { return rows * threads <= kRoundedAlone; }
inline size_t rounded_size(int rows, int width, int threads) {
  return size_t(std::max(rows, std::min(rows * threads, kRoundedAlone))) * width + kLine;
}

#if defined(__AVX512BF16__)

constexpr bool kTwos = true;

inline Floats all(Two value) {
  uint32_t word;
  std::memcpy(&word, &value, sizeof word);
  return reinterpret_cast<Floats>(word - Words{});
}

// A row of floats rounded to bfloat16, and zeros up to `width`.
inline void round_row(const float* x, int columns, int width, uint16_t* to) {
  const int whole = columns - columns % 16, rest = columns - whole;
  for (int i = 0; i < whole; i += 16) store(to + i, load(x + i));
  if (width == whole) return;
  const auto first = [](int count) { return __mmask16((1u << count) - 1); };
  const __m512 last = _mm512_maskz_loadu_ps(first(rest), x + whole);
  const int behind = std::min(16, width - whole);
  _mm256_mask_storeu_epi16(to + whole, first(behind), (__m256i)_mm512_cvtneps_pbh(last));
  std::fill(to + whole + behind, to + width, uint16_t(0));
}

// x [rows, columns] as [rows, width], at the beginning of a line in `to`.
const uint16_t* rounded(Team& team, const float* x, int rows, int columns, int width, uint16_t* to) {
  to += -(reinterpret_cast<uintptr_t>(to) / sizeof *to) % kLine;
  const auto round = [&](int row) {
    round_row(x + size_t(row) * columns, columns, width, to + size_t(row) * width);
  };
  if (!rounds_alone(rows, omp_get_num_threads())) {
    team.each(rows, round);
    return to;
  }
  to += size_t(omp_get_thread_num()) * rows * width;
  for (int row = 0; row < rows; ++row) round(row);
  return to;
}

#else

constexpr bool kTwos = false;

#endif

// sum + x * weight. With kInPlace, of few registers, in the sum's own: where all are taken, the compiler
// would pass sums from one to another through memory.
template <class W, bool kInPlace = false>
inline Floats add_product(Floats x, Floats weight, Floats sum) {
#if defined(__AVX512BF16__)
  if constexpr (kIsTwo<W>)
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)weight);
#endif
#if defined(__FMA__) && !defined(__AVX512F__)
  if constexpr (kInPlace) {
    auto found = (__m256)sum;
    asm("vfmadd231ps %2, %1, %0" : "+x"(found) : "x"((__m256)x), "x"((__m256)weight));
    return (Floats)found;
  }
#endif
  return fused(x, weight, sum);
}

}  // namespace
