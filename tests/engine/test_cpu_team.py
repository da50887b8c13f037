"""Work that the kernels' threads share out: all is done, once, and a slow thread is helped."""

import subprocess

import pytest

from tandem.cpu import library

SOURCE = """
#include <chrono>
#include <cstdio>
#include <vector>

#include "team.h"

std::vector<int> done(1000);

// Says what is wrong with work for so many threads. The first waits until others have done so much.
void share(Team& team, int threads, int count, int others) {
  std::fill(done.begin(), done.end(), 0);
  std::atomic<int> ended{0}, helped{0};
#pragma omp parallel num_threads(threads)
  {
    bool first = omp_get_thread_num() == 0;
    team.each(
        count,
        [&](int i) {
          const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
          while (first && helped < others)
            if (std::chrono::steady_clock::now() > late) {
              std::printf("nobody has helped\\n");
              break;
            }
          first = false;
          if (omp_get_thread_num() != 0) ++helped;
#pragma omp atomic
          ++done[i];
        },
        [&] { ++ended; });
    if (ended != threads) std::printf("passed before %d had ended\\n", threads - ended);
  }
  for (int i = 0; i < int(done.size()); ++i)
    if (done[i] != (i < count)) std::printf("%d of %d: done %d times\\n", i, count, done[i]);
}

// The same one at a time. A slow thread has not done its first one before all others are.
void share_uneven(Team& team, int threads, int count, int slow) {
  std::fill(done.begin(), done.end(), 0);
  std::atomic<int> left{count};
#pragma omp parallel num_threads(threads)
  {
    team.each_uneven(count, [&](int i) {
      const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (omp_get_thread_num() == slow && left > 1)
        if (std::chrono::steady_clock::now() > late) {
          std::printf("nobody has helped thread %d of %d\\n", slow, threads);
          break;
        }
      --left;
#pragma omp atomic
      ++done[i];
    });
    if (left != 0) std::printf("passed while %d were left\\n", left.load());
  }
  for (int i = 0; i < int(done.size()); ++i)
    if (done[i] != (i < count)) std::printf("%d of %d: done %d times\\n", i, count, done[i]);
}

int main() {
  Team team;
  team.fit(7);
  for (int threads = 1; threads <= 7; ++threads)
    for (int count : {0, 1, 2, 3, 5, 6, 7, 8, 40, 999}) share(team, threads, count, 0);
  for (int threads = 1; threads <= 7; ++threads)
    for (int count : {0, 1, 2, 3, 5, 6, 7, 8, 40, 999}) {
      share_uneven(team, threads, count, -1);
      share(team, threads, count, 0);
    }
  for (int threads = 2; threads <= 7; ++threads)
    for (int slow = 0; slow < threads; ++slow) share_uneven(team, threads, 4 * threads, slow);
  share(team, 2, 400, 300);  // its own, and all that the first has not taken yet
  share(team, 1, 1, 0);
  for (int phase = 1; phase < 1 << 20; ++phase) team.each(0, [](int) {});
  share(team, 1, 1, 0);  // a phase that looks like the one long ago
}
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    folder = tmp_path_factory.mktemp("team")
    (folder / "check.cpp").write_text(SOURCE, encoding="utf-8")
    flags = ["-O2", "-std=c++17", "-fopenmp", "-pthread", f"-I{library.SOURCE.parent}"]
    program = folder / "check"
    subprocess.run(["g++", *flags, folder / "check.cpp", "-o", program], check=True)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout


def test_all_is_done_once_and_a_slow_thread_gets_help(said):
    assert said == ""
