// What linear layers take: rows of floats, or rounded to bfloat16 where the processor multiplies those
// (twos.h, tiles.h). Whoever makes a row writes it so: all threads read all of them, and half as much
// has to come from one core to another, and into the first cache.
#pragma once

#include <algorithm>
#include <new>
#include <vector>

#include "numbers.h"

namespace {

// Vectors that begin with a line of memory: where rows are whole lines, as a rule, a register's numbers, or a
// row of a tile, lie in one. They hold whatever was there before.
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

// Room for so many; what was there is lost where it was too small.
template <class Room>
void make_room(Room& room, size_t size) {
  if (room.size() < size) Room(size).swap(room);
}

struct Inputs {
  const float* floats = nullptr;
  const uint16_t* halves = nullptr;  // or null: then there are floats
  size_t width = 0;                  // from row to row

  const void* at() const { return halves ? static_cast<const void*>(halves) : floats; }
};

// With memory of their own, to be written.
class OwnInputs : public Inputs {
 public:
  // Rows of so many columns, as floats or, with zeros behind the last column, rounded.
  void fit(size_t rows, int columns, size_t width_of_row, bool rounded) {
    width = width_of_row;
    make_room(memory_, rounded ? (rows * width + 1) / 2 : rows * width);
    floats = rounded ? nullptr : memory_.data();
    halves = rounded ? rounded_() : nullptr;
    for (size_t row = 0; rounded && row < rows; ++row)
      std::fill(rounded_() + row * width + columns, rounded_() + (row + 1) * width, uint16_t(0));
  }

  // Some numbers from a column on: as many as a register has, or fewer.
  void put(size_t row, int column, Floats values, int count) {
    const size_t at = row * width + column;
    halves ? store_some(rounded_() + at, values, count) : store_some(&memory_[at], values, count);
  }

  void put_row(size_t row, int first, const float* from, int count) {
    for (int i = 0; i < count; i += kLanes)
      put(row, first + i, load_some(from + i, count - i), count - i);
  }

  // Another one's, of the same width.
  void copy_row(size_t row, const Inputs& from, size_t other) {
    if (halves)
      std::copy_n(from.halves + other * width, width, rounded_() + row * width);
    else
      std::copy_n(from.floats + other * width, width, &memory_[row * width]);
  }

 private:
  uint16_t* rounded_() { return reinterpret_cast<uint16_t*>(memory_.data()); }

  Lines<float> memory_;
};

}  // namespace
