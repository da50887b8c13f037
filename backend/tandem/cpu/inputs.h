// What linear layers take: rows of floats, or rounded to bfloat16 where the processor multiplies those
// (twos.h, tiles.h). Whoever makes a row writes it so: all threads read all of them, and half as much
// has to come from one core to another, and into the first cache.
#pragma once

#include <algorithm>
#include <new>
#include <vector>

#include "numbers.h"

namespace {

// Vectors that begin with a line of memory, so that registers' numbers and tiles' rows lie in one line each,
// and of whatever was there.
template <class T>
struct OnLines {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};

  OnLines() = default;
  template <class U>
  OnLines(const OnLines<U>&) {}
  T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kLine)); }
  void deallocate(T* memory, size_t) { ::operator delete(memory, kLine); }
  template <class U>
  void construct(U* place) {
    ::new (static_cast<void*>(place)) U;
  }
  template <class U>
  bool operator==(const OnLines<U>&) const {
    return true;
  }
  template <class U>
  bool operator!=(const OnLines<U>&) const {
    return false;
  }
};
template <class T>
using Lines = std::vector<T, OnLines<T>>;

struct Inputs {
  float* floats;
  uint16_t* halves;  // null, or in the place of floats
  size_t width;      // from row to row; behind the last column there are zeros

  const void* at() const { return halves ? static_cast<const void*>(halves) : floats; }

  // Some numbers from a column on: as many as a register has, or fewer.
  void put(size_t row, int column, Floats values, int count) const {
    const size_t at = row * width + column;
    halves ? store_some(halves + at, values, count) : store_some(floats + at, values, count);
  }

  void put_row(size_t row, int first, const float* from, int count) const {
    for (int i = 0; i < count; i += kLanes)
      put(row, first + i, load_some(from + i, count - i), count - i);
  }

  // Another one's, of the same width.
  void copy_row(size_t row, const Inputs& from, size_t other) const {
    if (halves)
      std::copy_n(from.halves + other * width, width, halves + row * width);
    else
      std::copy_n(from.floats + other * width, width, floats + row * width);
  }
};

}  // namespace
