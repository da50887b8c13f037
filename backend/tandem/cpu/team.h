// The threads of a parallel region: what they share out, and how they wait for each other.
#pragma once

#include <omp.h>
#include <sched.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <atomic>

namespace {

// A thread that waits looks a while whether the others are there, some 50 to 100 us, and from then
// on lets others have the core between two looks. OpenMP's own barrier holds it for 15 ms: where
// other processes want the cores too, that is taken from the very thread that is waited for.
class Team {
 public:
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

  // some(i) for all i below count, whoever does it, and then all wait.
  template <class Some>
  void each(int count, Some some) {
#pragma omp for schedule(static) nowait
    for (int i = 0; i < count; ++i) some(i);
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

  static void pause() {
#if defined(__SSE2__)
    _mm_pause();
#endif
  }

  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> phase_{0};
};

}  // namespace
