// The threads of a parallel region: what they share out, and how they wait for each other.
#pragma once

#include <omp.h>
#include <sched.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

namespace {

// A run of what is to be done.
struct Range {
  uint32_t begin, end;

  bool empty() const { return begin == end; }
};

// A thread's run of what is shared out between two barriers, of which others may take.
class alignas(64) Share {
 public:
  // Half of what is left of `whole`, which the thread itself (`own`) takes from the beginning and others
  // from the end, or nothing. phase: the same for whatever is shared out between the same barriers.
  Range take(unsigned phase, Range whole, bool own) {
    uint64_t seen = left_.load(std::memory_order_relaxed);
    for (;;) {
      Range left{uint32_t(seen >> kBits) & kMost, uint32_t(seen) & kMost};
      if (seen >> 2 * kBits != (phase & kPhases)) left = whole;  // nobody has taken any yet
      if (left.empty()) return left;
      const uint32_t half = (left.end - left.begin + 1) / 2;
      const Range taken = own ? Range{left.begin, left.begin + half} : Range{left.end - half, left.end};
      (own ? left.begin : left.end) = own ? taken.end : taken.begin;
      const uint64_t rest = uint64_t(phase) << 2 * kBits | uint64_t(left.begin) << kBits | left.end;
      if (left_.compare_exchange_weak(seen, rest, std::memory_order_relaxed)) return taken;
    }
  }

 private:
  static constexpr int kBits = 20;
  static constexpr uint32_t kMost = (1 << kBits) - 1, kPhases = (1 << (64 - 2 * kBits)) - 1;

  std::atomic<uint64_t> left_{~uint64_t(0)};  // the phase, the beginning and the end of what is left
};

// A thread that waits looks a while whether the others are there, some 50 to 100 us, and from then
// on lets others have the core between two looks. OpenMP's own barrier holds it for 15 ms: where
// other processes want the cores too, that is taken from the very thread that is waited for.
class Team {
 public:
  // Before a region of so many threads.
  void fit(int threads) {
    if (threads <= size_) return;
    shares_ = std::make_unique<Share[]>(threads);
    size_ = threads;
  }

  // All have come this far.
  void wait() {
    const unsigned phase = phase_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == omp_get_num_threads()) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      return;
    }
    for (int looks = 0; phase_.load(std::memory_order_acquire) == phase; ++looks)
      looks < kLooks ? pause() : void(sched_yield());
  }

  // some(i) for all i below count, and then all wait. Each thread has a run of its own; whoever is
  // through with it takes of what some others have left, for no two cores are equally fast: others'
  // threads run beside ours, on them or on their other halves.
  template <class Some>
  void each(int count, Some some) {
    each(count, some, [] {});
  }

  // The same; each thread calls `last` before it waits.
  template <class Some, class Last>
  void each(int count, Some some, Last last) {
    const unsigned phase = phase_.load(std::memory_order_relaxed);
    const int64_t threads = omp_get_num_threads(), own = omp_get_thread_num();
    for (int64_t next = own; next < own + std::min(threads, 1 + kOthers); ++next) {
      const int64_t whose = next % threads;
      const Range whole{uint32_t(count * whose / threads), uint32_t(count * (whose + 1) / threads)};
      for (;;) {
        const Range taken = shares_[whose].take(phase, whole, next == own);
        if (taken.empty()) break;
        for (uint32_t i = taken.begin; i < taken.end; ++i) some(int(i));
      }
    }
    last();
    wait();
  }

  // The same where some take longer than others.
  template <class Some>
  void each_uneven(int count, Some some) {
#pragma omp for schedule(dynamic) nowait
    for (int i = 0; i < count; ++i) some(i);
    wait();
  }

 private:
  static constexpr int kLooks = 2000;
  static constexpr int64_t kOthers = 3;  // to ask everybody takes long where there are many

  static void pause() {
#if defined(__SSE2__)
    _mm_pause();
#endif
  }

  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> phase_{0};
  std::unique_ptr<Share[]> shares_;  // of each thread
  int size_ = 0;
};

}  // namespace
