// Registers of floats, and numbers in the two formats that are stored.
#pragma once

#if defined(__FMA__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
// AVX2 has sixteen registers: where sums take most of them, what the compiler makes of loops has to be
// helped.
#if defined(__FMA__) && !defined(__AVX512F__)
constexpr bool kFewRegisters = true;
#else
constexpr bool kFewRegisters = false;
#endif
typedef float Floats __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4), aligned(2), may_alias));

// A bfloat16 is the upper half of a float.
inline Floats load(const float* from) { return *reinterpret_cast<const Floats*>(from); }
inline Floats load(const uint16_t* from) {
#if defined(__AVX512F__)
  const Words words = (Words)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__FMA__)
  const Words words = (Words)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from));
#else
  typedef uint16_t Halves __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));
  const Words words = __builtin_convertvector(*reinterpret_cast<const Halves*>(from), Words);
#endif
  return reinterpret_cast<Floats>(words << 16);
}
inline Words load_words(const void* from) { return *static_cast<const Words*>(from); }
inline void store_words(void* to, Words words) { *static_cast<Words*>(to) = words; }
inline void store(float* to, Floats value) { *reinterpret_cast<Floats*>(to) = value; }
inline void narrow(float value, uint16_t* to) {  // to the nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (value != value) bits = 0x7fc00000;  // rounding up would make a number of some NaNs
  *to = uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline void store(uint16_t* to, Floats value) {
#if defined(__AVX512BF16__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh((__m512)value));
#else
  for (int lane = 0; lane < kLanes; ++lane) narrow(value[lane], to + lane);
#endif
}
// a * b + c, rounded once. Left to the compiler, it would depend on what stands around it.
inline Floats fused(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}
inline Floats all(float value) { return value - Floats{}; }  // adding would turn -0 into 0
inline float sum(Floats value) {  // by halves
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)value);
#else
  float parts[kLanes];
  std::memcpy(parts, &value, sizeof parts);
  for (int half = kLanes / 2; half; half /= 2)
    for (int lane = 0; lane < half; ++lane) parts[lane] += parts[lane + half];
  return parts[0];
#endif
}

// a where it is greater, or else b. (Compilers make two instructions of a comparison and a choice.)
inline Floats greater(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__FMA__)
  return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}
inline float greatest(Floats value) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)value);
#else
  float parts[kLanes];
  std::memcpy(parts, &value, sizeof parts);
  for (int half = kLanes / 2; half; half /= 2)
    for (int lane = 0; lane < half; ++lane) parts[lane] = std::max(parts[lane], parts[lane + half]);
  return parts[0];
#endif
}

constexpr float kLog2OfE = 1.44269504f;

// e to the x, to some 1e-7 of it; 0 far below. Cephes' polynomial (Moshier) around a power of two.
inline Floats exp(Floats x) {
  const Floats bounded = x > -87.0f ? (x < 88.0f ? x : all(88.0f)) : all(-87.0f);
  const Floats magic = all(12582912.0f);  // 1.5 * 2^23: what is added to it is rounded
  const Floats twos = fused(bounded, all(kLog2OfE), magic) - magic;
  Floats rest = fused(twos, all(-0.693359375f), bounded);
  rest = fused(twos, all(2.12194440e-4f), rest);
  Floats found = all(1.9875691500e-4f);
  for (const float factor : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                             1.6666665459e-1f, 5.0000001201e-1f})
    found = fused(found, rest, all(factor));
  found = fused(found, rest * rest, rest + 1.0f);
  const Ints power = (__builtin_convertvector(twos, Ints) + 127) << 23;
  return x > -87.0f ? found * reinterpret_cast<Floats>(power) : all(0.0f);
}

// Two to the x, to some 4e-6 of it, for what is rounded to bfloat16; 0 far below.
inline Floats power_of_two(Floats x) {
#if defined(__AVX512F__)
  const __m512 power = (__m512)x, whole = _mm512_roundscale_ps(power, 0);
  const Floats rest = (Floats)_mm512_sub_ps(power, whole);
  Floats found = all(9.66637e-3f);
  for (const float factor : {5.592198e-2f, 2.4022349e-1f, 6.9312105e-1f, 1.0f})
    found = fused(found, rest, all(factor));
  // What would be smaller than any normal number takes a hundred times as long.
  const __mmask16 normal = _mm512_cmp_ps_mask(power, _mm512_set1_ps(-126.0f), _CMP_GT_OQ);
  return (Floats)_mm512_maskz_scalef_ps(normal, (__m512)found, whole);
#else
  return exp(x * (1 / kLog2OfE));
#endif
}

// x / (1 + e to the -x). Division takes as long as all the rest: an estimate to some 6e-5 that is made
// better once is as good.
inline Floats silu(Floats x) {
  const Floats divisor = 1.0f + exp(-x);
#if defined(__AVX512F__)
  const Floats estimate = (Floats)_mm512_rcp14_ps((__m512)divisor);
  return x * fused(estimate, fused(-divisor, estimate, all(1.0f)), estimate);
#else
  return x / divisor;
#endif
}

inline float widen(float value) { return value; }
inline float widen(uint16_t value) {
  const uint32_t bits = uint32_t(value) << 16;
  float found;
  std::memcpy(&found, &bits, 4);
  return found;
}
template <class W>
inline void widen(const W* from, int count, float* to) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
  for (; i < count; ++i) to[i] = widen(from[i]);
}
template <class W>
inline Floats load_some(const W* from, int count) {  // and zeros behind, or all
  if (count >= kLanes) return load(from);
  Floats found = {};
  for (int lane = 0; lane < count; ++lane) found[lane] = widen(from[lane]);
  return found;
}
inline void narrow(float value, float* to) { *to = value; }
template <class W>
inline void store_some(W* to, Floats values, int count) {  // or all
  if (count >= kLanes) return store(to, values);
  for (int lane = 0; lane < count; ++lane) narrow(values[lane], to + lane);
}
template <class W>
inline void narrow(const float* from, int count, W* to) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, load(from + i));
  for (; i < count; ++i) narrow(from[i], to + i);
}

}  // namespace
