// Reads memory as fast as two vector loads a cycle and requests ahead of them allow: what a pass over
// a model's weights is compared with.
#include <cstddef>
#include <cstdint>

typedef uint64_t Words __attribute__((vector_size(64)));

namespace {

// kCache: where requests bring what is read next, 3: into the first cache, 2: into the second one.
template <int kCache>
uint64_t read(const char* at, const char* end) {
  Words sums[4] = {};
  for (; at + 256 <= end; at += 256)
    for (int i = 0; i < 4; ++i) {
      __builtin_prefetch(at + 4096 + 64 * i, 0, kCache);
      sums[i] += *reinterpret_cast<const Words*>(at + 64 * i);
    }
  uint64_t found = 0;
  for (const Words& sum : sums)
    for (int lane = 0; lane < 8; ++lane) found += sum[lane];
  return found;
}

}  // namespace

extern "C" uint64_t read_all(const char* from, size_t bytes, int threads, int first_cache) {
  uint64_t found = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(+ : found)
  for (size_t part = 0; part < size_t(threads); ++part) {
    const char* end = from + bytes / threads * (part + 1);
    const char* begin = end - bytes / threads;
    found += first_cache ? read<3>(begin, end) : read<2>(begin, end);
  }
  return found;
}
