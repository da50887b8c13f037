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

// What is to be done from `begin` on and before `end`.
struct Range {
  uint32_t begin, end;

  bool empty() const { return begin == end; }
};

// What is left of a thread's part of what is shared out between two barriers, fewer than 2^22: others may
// take of it too.
class alignas(64) Rest {
 public:
  // Half of what is left of a part of that size, or `one`, which the thread itself (`own`) takes from the
  // beginning and others from the end, or nothing. phase: the same for whatever is shared out between the
  // same barriers.
  Range take(unsigned phase, uint32_t size, bool own, bool one) {
    uint64_t seen = left_.load(std::memory_order_relaxed);
    for (;;) {
      const bool begun = seen >> 2 * kBits == (phase & kPhases);
      Range left{0, size};
      if (begun) left = {uint32_t(seen >> kBits) & kMost, uint32_t(seen) & kMost};
      // (A part of nothing gets this phase too: numbers of phases come round again.)
      if (begun && left.empty()) return left;
      const uint32_t some = one ? left.end > left.begin : (left.end - left.begin + 1) / 2;
      const Range taken = own ? Range{left.begin, left.begin + some} : Range{left.end - some, left.end};
      (own ? left.begin : left.end) = own ? taken.end : taken.begin;
      const uint64_t rest = uint64_t(phase) << 2 * kBits | uint64_t(left.begin) << kBits | left.end;
      if (left_.compare_exchange_weak(seen, rest, std::memory_order_relaxed)) return taken;
    }
  }

 private:
  static constexpr int kBits = 22;
  static constexpr uint32_t kMost = (1 << kBits) - 1, kPhases = (1 << (64 - 2 * kBits)) - 1;

  std::atomic<uint64_t> left_{0};  // the phase, the beginning and the end
};

// A thread that waits looks a while whether the others are there, some 50 to 100 us, and from then
// on lets others have the core between two looks. OpenMP's own barrier holds it for 15 ms: where
// other processes want the cores too, that is taken from the very thread that is waited for.
class Team {
 public:
  // Before a region of so many threads; late: the first one has something else to do as it begins, and
  // then comes (`join`).
  void fit(int threads, bool late = false) {
    absent_.store(late, std::memory_order_relaxed);
    wants_.store(false, std::memory_order_relaxed);
    over_.store(false, std::memory_order_relaxed);
    missed_ = 0;
    began_ = phase_.load(std::memory_order_relaxed);
    if (threads <= size_) return;
    rests_ = std::make_unique<Rest[]>(threads);
    size_ = threads;
    phase_.store(1, std::memory_order_relaxed);  // another one than theirs
    began_ = 1;
  }

  // All have come this far.
  void wait() {
    if (misses()) {
      --missed_;
      return;
    }
    const unsigned phase = phase_.load(std::memory_order_acquire);
    const int there = omp_get_num_threads() - absent_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == there) {
      arrived_.store(0, std::memory_order_relaxed);
      const bool admits = wants_.load(std::memory_order_acquire);
      if (admits) {
        missed_ = phase + 1 - began_;
        absent_.store(0, std::memory_order_relaxed);
      }
      phase_.store(phase + 1, std::memory_order_release);
      if (admits) wants_.store(false, std::memory_order_release);
      return;
    }
    look([&] { return phase_.load(std::memory_order_acquire) != phase; });
  }

  // The late first thread comes: all stand at a barrier, and what is shared out before it is done without
  // this one, which goes through the same lines and passes over it. False: all is done.
  bool join() {
    if (omp_get_num_threads() == 1) {
      absent_.store(0, std::memory_order_relaxed);
      return true;
    }
    wants_.store(true, std::memory_order_release);
    look([&] { return !wants_.load(std::memory_order_acquire) || over_.load(std::memory_order_acquire); });
    return !wants_.load(std::memory_order_acquire);
  }

  // Behind the last barrier of a region with a late thread, by all others.
  void leave() { over_.store(true, std::memory_order_release); }

  // Where this thread's part of what is shared out begins, or another one's.
  static int first(int count) { return first(count, omp_get_thread_num()); }
  static int first(int count, int64_t thread) { return int(count * thread / omp_get_num_threads()); }

  // some(i) for all i below count, and then all wait. Each thread has a part of its own; whoever is
  // through with it takes of what the next three have left, but not of what they have taken: no two cores
  // are equally fast, for other processes run on them too, or on their hyperthreads.
  template <class Some>
  void each(int count, Some some) {
    each(count, some, [] {});
  }

  // The same; each thread calls `last` before it waits.
  template <class Some, class Last>
  void each(int count, Some some, Last last) {
    share(count, some, false);
    if (!misses()) last();
    wait();
  }

  // The same one at a time, for few that take very different times: whoever is through helps anybody.
  template <class Some>
  void each_uneven(int count, Some some) {
    share(count, some, true);
    wait();
  }

 private:
  static constexpr int kLooks = 2000;
  static constexpr int64_t kOthers = 3;  // to ask everybody takes long where there are many

  // Whether this thread comes late, and what is behind the next barrier is behind it too.
  bool misses() const { return omp_get_thread_num() == 0 && missed_ > 0; }

  template <class Done>
  static void look(Done done) {
    for (int looks = 0; !done(); ++looks) looks < kLooks ? pause() : void(sched_yield());
  }

  template <class Some>
  void share(int count, Some some, bool one) {
    if (misses()) return;
    const unsigned phase = phase_.load(std::memory_order_relaxed);
    const int64_t threads = omp_get_num_threads(), own = omp_get_thread_num();
    const int64_t asked = one ? threads : std::min(threads, 1 + kOthers);
    for (int64_t next = own; next < own + asked; ++next) {
      const int64_t whose = next % threads;
      const int begin = first(count, whose), end = first(count, whose + 1);
      for (;;) {
        const Range taken = rests_[whose].take(phase, uint32_t(end - begin), next == own, one);
        if (taken.empty()) break;
        for (uint32_t i = taken.begin; i < taken.end; ++i) some(begin + int(i));
      }
    }
  }

  static void pause() {
#if defined(__SSE2__)
    _mm_pause();
#endif
  }

  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> phase_{0};
  std::atomic<int> absent_{0};  // threads that are not there yet: the first one, or none
  std::atomic<bool> wants_{false}, over_{false};  // it waits to join; the others have done all
  unsigned began_ = 0, missed_ = 0;  // the phase when the region began; barriers that it passes over
  std::unique_ptr<Rest[]> rests_;  // of each thread
  int size_ = 0;
};

}  // namespace
