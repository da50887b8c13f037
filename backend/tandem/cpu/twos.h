// Columns of a bfloat16 weight in twos, where the processor adds two products to a sum at once
// (AVX512_BF16): half as many instructions as with floats.
//
// It multiplies bfloat16 by bfloat16 and sums in float. So a linear layer's input is rounded to
// bfloat16 (inputs.h), as it is where a model is computed in bfloat16 throughout.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "numbers.h"

namespace {

struct Two {
  uint16_t first, second;
};

// The same in 8 bits each, for drafts: a sign, 4 bits of exponent and 3 of the number, so that weights are
// rounded to a sixteenth of themselves at most. `lowest`, a bfloat16's exponent, is what an exponent of 0
// stands for: the greatest weight of a matrix has 15. There is no zero, but numbers 2^-15 of the greatest.
// What is multiplied is bfloat16 again.
struct Eights {
  uint8_t first, second;
};

template <class W>
constexpr bool kIsEights = std::is_same_v<W, Eights>;
template <class W>
constexpr bool kIsTwo = std::is_same_v<W, Two> || kIsEights<W>;

// What a weight stored as W is multiplied by.
template <class W>
using Input = std::conditional_t<kIsTwo<W>, Two, float>;

// How many W a row's columns are.
template <class W>
constexpr int steps_of(int columns) {
  return kIsTwo<W> ? (columns + 1) / 2 : columns;
}

// To the nearest, ties to even.
inline uint8_t eight(uint16_t number, int lowest) {
  const int size = number & 0x7fff, rounded = (size + 7 + (size >> 4 & 1)) >> 4;
  return uint8_t(number >> 8 & 0x80) | uint8_t(std::clamp(rounded - (lowest << 3), 0, 0x7f));
}

// The k-th of them.
template <class W, class Number>
W step_at(const Number* row, int k, int columns, int lowest) {
  if constexpr (kIsEights<W>)
    return {eight(row[2 * k], lowest), eight(2 * k + 1 < columns ? row[2 * k + 1] : 0, lowest)};
  else if constexpr (kIsTwo<W>)
    return {row[2 * k], 2 * k + 1 < columns ? row[2 * k + 1] : Number(0)};
  else
    return row[k];
}

#if defined(__AVX512BF16__)

constexpr bool kTwos = true;

inline Floats all(Two value) {
  uint32_t word;
  std::memcpy(&word, &value, sizeof word);
  return reinterpret_cast<Floats>(word - Words{});
}

// A register of them, as twos. lowest: in all numbers of a register, at its place in a bfloat16.
inline Floats widened(const Eights* from, Words lowest) {
  const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)from));
  const __m512i own = _mm512_and_si512(_mm512_slli_epi16(wide, 4), _mm512_set1_epi16(int16_t(0x87f0)));
  return (Floats)_mm512_add_epi16(own, (__m512i)lowest);
}

#else

constexpr bool kTwos = false;

#endif

// A bfloat16 weight, as it is stored for registers.
using Half = std::conditional_t<kTwos, Two, uint16_t>;

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
