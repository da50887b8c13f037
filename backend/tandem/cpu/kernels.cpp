// A dense decoder's forward pass on CPU cores: every weight is read once, and every key and value
// of a request once for all rows of its draft tree. Weights and the KV cache are float or bfloat16,
// arithmetic is float. One parallel region from the tokens, and for a draft head the target's
// hidden states, to the logits.
//
// A row's result does not depend, to the last bit, on what is computed beside it: every sum has an
// order of its own, by columns or by positions in the text, whatever the rows, threads or trees. So
// a verified draft gives the very numbers that plain decoding gives.
#include <omp.h>
#if defined(__FMA__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace {

// -- numbers ------------------------------------------------------------------------------------

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
typedef float Floats __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

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
inline void store(float* to, Floats value) { *reinterpret_cast<Floats*>(to) = value; }
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
  float parts[kLanes];
  std::memcpy(parts, &value, sizeof parts);
  for (int half = kLanes / 2; half; half /= 2)
    for (int lane = 0; lane < half; ++lane) parts[lane] += parts[lane + half];
  return parts[0];
}

// The sums of four; the same sums whatever stands beside them.
inline void sum_four(const Floats* values, float* to) {
#if defined(__FMA__)
  __m256 part[4];
  for (int i = 0; i < 4; ++i) {
#if defined(__AVX512F__)
    const __m512d whole = (__m512d)values[i];
    part[i] = _mm256_add_ps(_mm512_castps512_ps256((__m512)values[i]),
                            _mm256_castpd_ps(_mm512_extractf64x4_pd(whole, 1)));
#else
    part[i] = (__m256)values[i];
#endif
  }
  const __m256 sums = _mm256_hadd_ps(_mm256_hadd_ps(part[0], part[1]),
                                     _mm256_hadd_ps(part[2], part[3]));
  _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
#else
  for (int i = 0; i < 4; ++i) to[i] = sum(values[i]);
#endif
}

// e to the x, to some 1e-7 of it; 0 far below. Cephes' polynomial (Moshier) around a power of two.
inline Floats exp(Floats x) {
  const Floats bounded = x > -87.0f ? (x < 88.0f ? x : all(88.0f)) : all(-87.0f);
  const Floats magic = all(12582912.0f);  // 1.5 * 2^23: what is added to it is rounded
  const Floats twos = fused(bounded, all(1.44269504f), magic) - magic;
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
inline Floats load_some(const W* from, int count) {  // zeros behind
  Floats found = {};
  for (int lane = 0; lane < count; ++lane) found[lane] = widen(from[lane]);
  return found;
}
inline void narrow(float value, float* to) { *to = value; }
inline void narrow(float value, uint16_t* to) {  // to the nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (value != value) bits = 0x7fc00000;  // rounding up would make a number of some NaNs
  *to = uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// -- what Python hands over ---------------------------------------------------------------------

struct Matrix {
  const void* weight;  // [rows, columns], packed (see `pack`); an embedding's is not
  const float* bias;   // [rows] or null
  int32_t rows, columns, bfloat;
};

struct Layer {
  Matrix qkv, out, gate_up, down;
  const float *input_norm, *post_norm;
  const float *query_norm, *key_norm;  // [head_dim] or null
  void* cache;                         // [slots, 2 * kv_heads * head_dim]
};

// What a draft head makes of a token's embedding and a hidden state, each with its norm or none.
// Side by side they are what the first layer's attention reads; with a projection, that is the
// first layer's input. The hidden state may come of several of the target's.
struct Entry {
  Matrix fuse;             // [hidden, width] of the target's, side by side; or none
  const float* fuse_norm;  // [width] or null
  int32_t fuse_parts;      // of the width, each normed for itself
  const float *token_norm, *hidden_norm;  // [hidden] or null
  Matrix project;                         // [hidden, 2 * hidden]; its weight null: there is none
  int32_t hidden_first;                   // of the two; otherwise the embedding is
  int32_t blind_start;                    // at position 0 there is no token
  int32_t normed_residual;                // without a projection, the input is the normed state
};

struct Model {
  int32_t layers, hidden, heads, kv_heads, head_dim, inner, block_size, threads;
  int32_t bfloat;  // the cache
  float epsilon;
  const Layer* layer;
  Matrix embedding;         // [vocabulary, hidden]
  const float* final_norm;  // or null: there is none
  const float *cos, *sin;  // [positions, head_dim], the signs folded into sin
  Matrix head;
  Entry entry;  // of a draft head
};

struct Query {
  int32_t blocks;  // where its block table begins
  int32_t start, stored, length;
  int32_t parents;  // where its nodes' parents begin, or -1: a chain
};

struct Step {
  int32_t rows, queries, picked, taps;
  const int64_t* tokens;    // [rows]
  const float* states;      // hidden states for a draft head, or null: [rows, hidden], or...
  int32_t fused;            // ... if this is 0, [rows, fuse.columns]
  const Query* query;       // [queries]
  const int32_t* blocks;    // block tables, one after the other
  const int32_t* parents;   // of trees, one after the other
  const int32_t* pick;      // [picked] rows whose logits are wanted
  const int32_t* tap;       // [taps] layers whose inputs are wanted
  float* logits;            // [picked, vocabulary]
  float* tapped;            // [rows, taps * hidden] or null
  float* normed;            // [rows, hidden] after the last norm, or null
};

// -- the batch, worked out once -----------------------------------------------------------------

constexpr int kWidest = 1024;  // most columns of a head
constexpr int kRows = 32;       // of a query that attend together, over one reading of the cache
constexpr int kScores = 65536;  // of a task, unless one KV head has more: they stay in the cache

struct Task {
  int32_t query, first, rows;  // `first` counts from the query's first row
  int32_t head, heads;         // KV heads
};

struct Run {
  std::vector<int32_t> position, slot;     // [rows]
  std::vector<std::vector<int32_t>> slots;  // [queries] [start + stored + length] of the text
  std::vector<int32_t> first;              // [queries] first row of each
  std::vector<std::vector<uint8_t>> seen;  // [queries] [length, stored + length]; empty: a chain
  std::vector<std::vector<int32_t>> depth;  // [queries] [stored + length] of each node
  std::vector<Task> tasks;
  int scores = 0, heads = 0;  // most that a task needs
};

// A row's query of one head, its scores or shares by position, and what it mixes of the values.
struct Head {
  const float* query;
  float *scores, *mixed;
};

// What a pass needs room for, kept from pass to pass: [rows, ...], but the last two.
struct Space {
  std::vector<float> x, normed, wide, fused, pair, qkv, mixed, gates, inner, delta, scores;
  std::vector<Head> heads;

  void fit(const Model& model, const Step& step, const Run& run) {
    const size_t rows = std::max(step.rows, step.picked), size = model.head_dim;
    grow(x, rows * model.hidden);
    grow(normed, rows * std::max(model.hidden, model.layer[0].qkv.columns));
    if (step.states) grow(pair, rows * 2 * model.hidden);
    if (step.states && !step.fused) {
      grow(wide, rows * model.entry.fuse.columns);
      grow(fused, rows * model.hidden);
    }
    grow(qkv, rows * (model.heads + 2 * model.kv_heads) * size);
    grow(mixed, rows * model.heads * size);
    grow(gates, rows * 2 * model.inner);
    grow(inner, rows * model.inner);
    grow(delta, rows * model.hidden);
    grow(scores, size_t(run.scores) * model.threads);
    grow(heads, size_t(run.heads) * model.threads);
  }

 private:
  template <class T>
  static void grow(std::vector<T>& part, size_t size) {
    if (part.size() < size) part.resize(size);
  }
};

std::vector<int32_t> slots_of(const Step& step, const Query& query, int block_size) {
  std::vector<int32_t> slots(query.start + query.stored + query.length);
  for (size_t at = 0, block = query.blocks; at < slots.size(); at += block_size, ++block)
    for (size_t i = at; i < std::min(at + block_size, slots.size()); ++i)
      slots[i] = step.blocks[block] * block_size + int32_t(i - at);
  return slots;
}

constexpr int kBlock = 16;  // positions whose keys or values are read together

inline int padded(int count) { return (count + kBlock - 1) / kBlock * kBlock; }

// Attention's tasks: as many KV heads of the same rows together as leave work for all threads, for
// their keys and values lie side by side.
void share_out(const Model& model, const Step& step, Run& run) {
  const int shared = model.heads / model.kv_heads;
  int chunks = 0;
  for (int q = 0; q < step.queries; ++q) chunks += (step.query[q].length + kRows - 1) / kRows;
  const auto even = [&](int heads) {
    const int tasks = chunks * (model.kv_heads / heads);
    return tasks % model.threads == 0 || tasks >= 4 * model.threads;
  };
  for (int q = 0; q < step.queries; ++q) {
    const Query& query = step.query[q];
    const int line = padded(query.start + query.stored + query.length);
    for (int begin = 0; begin < query.length; begin += kRows) {
      const int rows = std::min(kRows, query.length - begin);
      const int most = int(std::max<int64_t>(1, kScores / (int64_t(rows) * shared * line)));
      int heads = model.kv_heads;
      while (heads > 1 && (model.kv_heads % heads || heads > most || !even(heads))) --heads;
      for (int head = 0; head < model.kv_heads; head += heads)
        run.tasks.push_back({q, begin, rows, head, heads});
      run.heads = std::max(run.heads, rows * shared * heads);
      run.scores = std::max(run.scores, rows * shared * heads * line);
    }
  }
}

Run plan(const Model& model, const Step& step) {
  Run run;
  run.position.resize(step.rows);
  run.slot.resize(step.rows);
  run.seen.resize(step.queries);
  int row = 0;
  for (int q = 0; q < step.queries; ++q) {
    const Query& query = step.query[q];
    const int nodes = query.stored + query.length;
    run.first.push_back(row);
    run.slots.push_back(slots_of(step, query, model.block_size));
    std::vector<int32_t>& depth = run.depth.emplace_back(nodes);
    std::vector<uint8_t> above(query.parents < 0 ? 0 : size_t(nodes) * nodes);
    for (int node = 0; node < nodes; ++node) {
      const int parent = query.parents < 0 ? node - 1 : step.parents[query.parents + node];
      depth[node] = parent < 0 ? 0 : depth[parent] + 1;
      if (above.empty()) continue;
      uint8_t* own = &above[size_t(node) * nodes];
      if (parent >= 0) std::copy_n(&above[size_t(parent) * nodes], nodes, own);
      own[node] = 1;
    }
    if (!above.empty())
      run.seen[q].assign(above.begin() + size_t(query.stored) * nodes, above.end());
    for (int node = query.stored; node < nodes; ++node, ++row) {
      run.position[row] = query.start + depth[node];
      run.slot[row] = run.slots[q][query.start + node];
    }
  }
  share_out(model, step, run);
  return run;
}

// -- matrices -----------------------------------------------------------------------------------

// Weights lie as they are read, so that memory is read in a straight line: some outputs side by
// side, column after column. In bfloat16 an output shares a word with the one kWords further on.
// Every lane of a register is an output of its own, whose sum goes column by column. What is
// missing of the last outputs is zero.
constexpr int kOutputs = 32;
constexpr int kWords = kOutputs / 2;
constexpr int kParts = kWords / kLanes;  // of a column's weights, two registers each
constexpr int kSums = kLanes == 16 ? 12 : 6;  // pairs of registers that hold sums at once
constexpr int kAhead = 2048;                  // bytes of weights that are on their way

inline int groups_of(int rows) { return (rows + kOutputs - 1) / kOutputs; }

template <class W>
void pack(const W* weight, int rows, int columns, W* to) {
#pragma omp parallel for schedule(static)
  for (int row = 0; row < groups_of(rows) * kOutputs; ++row) {
    const int word = row % kWords, high = row % kOutputs / kWords;
    int place = (word / kLanes * 2 + high) * kLanes + word % kLanes;
    if (sizeof(W) == 2) place = 2 * word + high;
    W* out = to + size_t(row / kOutputs) * columns * kOutputs + place;
    for (int k = 0; k < columns; ++k)
      out[size_t(k) * kOutputs] = row < rows ? weight[size_t(row) * columns + k] : W(0);
  }
}

struct Pair {
  Floats low, high;
};
inline Pair load_pair(const float* from) { return {load(from), load(from + kLanes)}; }
inline Pair load_pair(const uint16_t* from) {
  const Words words = *reinterpret_cast<const Words*>(from);
  return {reinterpret_cast<Floats>(words << 16), reinterpret_cast<Floats>(words & 0xffff0000u)};
}

inline void put(Floats sums, const float* bias, int count, float* y) {
  if (bias) sums += count >= kLanes ? load(bias) : load_some(bias, count);
  if (count >= kLanes) return store(y, sums);
  for (int lane = 0; lane < count; ++lane) y[lane] = sums[lane];
}

// A group of outputs.
template <class W>
struct Group {
  const W* weights;
  const float* bias;  // or null
  int columns, outputs;
};

// What is asked for while a group is multiplied: so many bytes a column, so that memory is at work
// while weights in the cache are read once more.
struct Ahead {
  const char* from;
  int stride;
};

// P parts of a group's outputs, from `part` on, for M rows of y, `width` apart. (In a function of
// its own no other values take the sums' registers.)
template <class W, int M, int P>
__attribute__((noinline)) void tile(const Group<W>& group, int part, Ahead ahead, const float* x,
                                    float* y, int width) {
  constexpr int kAtOnce = M * P < kSums ? 4 : 1;  // columns: fewer instructions, more registers
  constexpr int kLines = kAtOnce * kOutputs * sizeof(W) / 64;
  Pair sums[M][P] = {};
  const int columns = group.columns;
  const W* w = group.weights + part * 2 * kLanes;
  const auto column = [&](int k) {
    for (int p = 0; p < P; ++p) {
      const Pair weights = load_pair(w + k * kOutputs + p * 2 * kLanes);
      for (int m = 0; m < M; ++m) {
        const Floats own = all(x[size_t(m) * columns + k]);
        sums[m][p].low = fused(own, weights.low, sums[m][p].low);
        sums[m][p].high = fused(own, weights.high, sums[m][p].high);
      }
    }
  };
  int k = 0;
#pragma GCC unroll 1
  for (; k + kAtOnce <= columns; k += kAtOnce, x += kAtOnce, w += kAtOnce * kOutputs) {
    for (int line = 0; line < kLines; ++line)
      __builtin_prefetch(ahead.from + line * ahead.stride);
    ahead.from += kLines * ahead.stride;
#pragma GCC unroll 4
    for (int i = 0; i < kAtOnce; ++i) column(i);
  }
#pragma GCC unroll 1
  for (; k < columns; ++k, ++x, w += kOutputs) column(0);
  for (int m = 0; m < M; ++m)
    for (int p = 0; p < P; ++p) {
      const int low = (part + p) * kLanes, high = kWords + low;
      float* own = y + size_t(m) * width;
      put(sums[m][p].low, group.bias ? group.bias + low : nullptr, group.outputs - low, own + low);
      put(sums[m][p].high, group.bias ? group.bias + high : nullptr, group.outputs - high,
          own + high);
    }
}

// Few rows leave registers for all parts at once.
constexpr int parts_at_once(int rows) { return rows * kParts < kSums ? kParts : 1; }

template <class W, int M = 1>
void tiles(int rows, const Group<W>& group, Ahead& ahead, const float* x, float* y, int width) {
  if constexpr (M < kSums)
    if (rows > M) return tiles<W, M + 1>(rows, group, ahead, x, y, width);
  constexpr int kStep = parts_at_once(M);
  for (int part = 0; part < kParts; part += kStep) {
    tile<W, M, kStep>(group, part, ahead, x, y, width);
    ahead.from += int64_t(group.columns) * kOutputs * sizeof(W) / 64 * ahead.stride;
  }
}

// All rows while a group's weights are in the cache; the next group's come meanwhile.
template <class W>
void multiply_as(const Matrix& matrix, const float* x, int rows, float* y) {
  const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
  if (rows == 0) return;
  const int groups = groups_of(matrix.rows), blocks = (rows + kSums - 1) / kSums;
  const int passes = blocks * kParts / parts_at_once((rows + blocks - 1) / blocks);
  const size_t size = size_t(kOutputs) * matrix.columns;
  const int last = int(groups * (thread + 1) / threads);
  for (int index = int(groups * thread / threads); index < last; ++index) {
    const int output = index * kOutputs;
    const Group<W> group{static_cast<const W*>(matrix.weight) + index * size,
                         matrix.bias ? matrix.bias + output : nullptr, matrix.columns,
                         matrix.rows - output};
    const char* own = reinterpret_cast<const char*>(group.weights);
    Ahead ahead{own + (passes == 1 ? kAhead : size * sizeof(W)), 64 / passes};
    for (int block = 0; block < blocks; ++block) {
      const int64_t row = rows * block / blocks, next = rows * (block + 1) / blocks;
      tiles<W>(int(next - row), group, ahead, x + row * matrix.columns,
               y + row * matrix.rows + output, matrix.rows);
    }
  }
}

// y [rows, matrix.rows] = x [rows, columns] by the transposed weight, and the bias: this thread's
// outputs.
void multiply(const Matrix& matrix, const float* x, int rows, float* y) {
  matrix.bfloat ? multiply_as<uint16_t>(matrix, x, rows, y) : multiply_as<float>(matrix, x, rows, y);
}

// -- rows ---------------------------------------------------------------------------------------

float dot(const float* a, const float* b, int width) {
  const int whole = width - width % kLanes, rest = width - whole;
  Floats sums = {};
  for (int i = 0; i < whole; i += kLanes) sums = fused(load(a + i), load(b + i), sums);
  if (rest) sums = fused(load_some(a + whole, rest), load_some(b + whole, rest), sums);
  return sum(sums);
}

void normalize(const float* x, const float* scale, int width, float epsilon, float* y) {
  if (!scale) {  // there is no norm
    std::memmove(y, x, size_t(width) * sizeof(float));
    return;
  }
  const float factor = 1 / std::sqrt(dot(x, x, width) / width + epsilon);
  for (int i = 0; i < width; ++i) y[i] = x[i] * factor * scale[i];
}

void rotate(float* head, const float* cos, const float* sin, int size) {
  const int half = size / 2;
  for (int i = 0; i < half; ++i) {
    const float low = head[i], high = head[i + half];
    head[i] = low * cos[i] + high * sin[i];
    head[i + half] = high * cos[i + half] + low * sin[i + half];
  }
}

// Norms and rotates a row's queries and keys, and stores its keys and values.
template <class W>
void prepare(const Model& model, const Layer& layer, int position, int slot, float* qkv) {
  const int size = model.head_dim;
  for (int head = 0; head < model.heads + model.kv_heads; ++head) {
    float* values = qkv + head * size;
    const float* scale = head < model.heads ? layer.query_norm : layer.key_norm;
    if (scale) normalize(values, scale, size, model.epsilon, values);
    rotate(values, model.cos + size_t(position) * size, model.sin + size_t(position) * size, size);
  }
  const int width = 2 * model.kv_heads * size;
  W* stored = static_cast<W*>(layer.cache) + size_t(slot) * width;
  const float* made = qkv + model.heads * size;
  for (int i = 0; i < width; ++i) narrow(made[i], stored + i);
}

// -- attention ----------------------------------------------------------------------------------

constexpr int kPositionsAhead = 32;
constexpr int kFew = 3;  // heads that read each key but once, all together

// Some KV heads for some rows of a query: over one reading of their keys and one of their values.
template <class W>
struct Attention {
  const W *keys, *values;  // of the first KV head, in slot 0
  const int32_t* slots;    // [end]
  int width;               // from slot to slot
  int size;                // of a head
  int kv_heads;
  int end;   // positions that any row may see
  int text;  // positions that all rows see
  const Head* heads;  // [kv_heads, count]
  int count;
};

// Has memory bring what lies at a position: the addresses jump too often for the processor to see
// it by itself.
template <class W>
void fetch(const Attention<W>& task, const W* from, int at) {
  const W* line = from + size_t(task.slots[at]) * task.width;
  for (int i = 0; i < task.kv_heads * task.size; i += 64 / int(sizeof(W)))
    __builtin_prefetch(line + i);
}

// A KV head's keys or values from a position on; what lies behind the end is not used.
template <class T>
struct Block {
  const T* line[kBlock];
};
template <class W>
Block<W> block_at(const Attention<W>& task, const W* from, int begin) {
  Block<W> block;
  for (int p = 0; p < kBlock; ++p)
    block.line[p] = from + size_t(task.slots[std::min(begin + p, task.end - 1)]) * task.width;
  return block;
}
template <class W>
Block<float> widened(const Block<W>& block, int size, float* wide) {
  Block<float> found;
  for (int p = 0; p < kBlock; ++p, wide += size) {
    widen(block.line[p], size, wide);
    found.line[p] = wide;
  }
  return found;
}

// Calls `use` with each block of each KV head; `next` is what will be read when this has been.
// What many read is widened first.
template <class W, class Use>
void each_block(const Attention<W>& task, const W* from, const W* next, Use use) {
  float wide[kBlock * kWidest];
  for (int at = 0; at < task.end; at += kBlock) {
    for (int later = at + kPositionsAhead; later < at + kPositionsAhead + kBlock; ++later)
      if (later < task.end)
        fetch(task, from, later);
      else if (next && later - task.end < task.end)
        fetch(task, next, later - task.end);
    for (int head = 0; head < task.kv_heads; ++head) {
      const Head* heads = task.heads + head * task.count;
      const Block<W> block = block_at(task, from + head * task.size, at);
      task.count > kFew ? use(at, heads, widened(block, task.size, wide)) : use(at, heads, block);
    }
  }
}

// Products of N heads' queries with the keys of a block from position `at` on.
template <int N, class T>
__attribute__((noinline)) void score(const Head* heads, const Block<T>& keys, int size, int at) {
  const int whole = size - size % kLanes;
  for (int first = 0; first < kBlock; first += 4) {
    Floats sums[N][4] = {};
    const auto part = [&](int i, auto load_part) {
      for (int p = 0; p < 4; ++p) {
        const Floats key = load_part(keys.line[first + p] + i);
        for (int n = 0; n < N; ++n)
          sums[n][p] = fused(load_part(heads[n].query + i), key, sums[n][p]);
      }
    };
    for (int i = 0; i < whole; i += kLanes) part(i, [](const auto* from) { return load(from); });
    if (whole < size)
      part(whole, [&](const auto* from) { return load_some(from, size - whole); });
    for (int n = 0; n < N; ++n) sum_four(sums[n], heads[n].scores + at + first);
  }
}

// to += share * from
template <class T>
void add_share(float share, const T* from, int width, float* to) {
  const int whole = width - width % kLanes;
  for (int i = 0; i < whole; i += kLanes)
    store(to + i, fused(all(share), load(from + i), load(to + i)));
  for (int i = whole; i < width; ++i)
    to[i] = fused(all(share), all(widen(from[i])), all(to[i]))[0];
}

// Adds `count` values from position `at` on to what N heads mix, by their shares.
template <int N, class T>
__attribute__((noinline)) void mix(const Head* heads, const Block<T>& values, int size, int at,
                                   int count) {
  const int whole = size - size % kLanes;
  int i = 0;
  const auto columns = [&](auto parts) {
    constexpr int kParts = decltype(parts)::value;
    Floats sums[N][kParts];
    for (int n = 0; n < N; ++n)
      for (int k = 0; k < kParts; ++k) sums[n][k] = load(heads[n].mixed + i + k * kLanes);
    for (int p = 0; p < count; ++p)
      for (int k = 0; k < kParts; ++k) {
        const Floats value = load(values.line[p] + i + k * kLanes);
        for (int n = 0; n < N; ++n)
          sums[n][k] = fused(all(heads[n].scores[at + p]), value, sums[n][k]);
      }
    for (int n = 0; n < N; ++n)
      for (int k = 0; k < kParts; ++k) store(heads[n].mixed + i + k * kLanes, sums[n][k]);
    i += kParts * kLanes;
  };
  constexpr int kMost = N <= 2 ? 4 : 2;  // that many sums fit the registers
  while (i + kMost * kLanes <= whole) columns(std::integral_constant<int, kMost>());
  while (i < whole) columns(std::integral_constant<int, 1>());
  for (int p = 0; p < count && whole < size; ++p)
    for (int n = 0; n < N; ++n)
      add_share(heads[n].scores[at + p], values.line[p] + whole, size - whole,
                heads[n].mixed + whole);
}

// Calls `some` with a number of heads that is known when this is compiled, until all had a turn.
template <int N, class Some>
inline void in_turns(int count, Some some) {
  int from = 0;
  for (; from + N <= count; from += N) some(std::integral_constant<int, N>(), from);
  if constexpr (N > 1)
    if (from < count) in_turns<N - 1>(count - from, [&](auto n, int at) { some(n, from + at); });
}

// Turns a row's scores into shares. Up to `whole` a score's place is its position in the text;
// behind it, `position` says. Sums go by position, so that a tree's path sums as the text will.
template <class Position>
void softmax(float* line, int whole, int end, float scale, Position position) {
  Floats most = all(-INFINITY);
  for (int i = 0; i < end; i += kLanes) {
    const Floats scores = load(line + i);
    most = scores > most ? scores : most;
  }
  float greatest = most[0];
  for (int lane = 1; lane < kLanes; ++lane) greatest = std::max(greatest, most[lane]);
  Floats sums = {};
  for (int i = 0; i < end; i += kLanes) {
    const Floats share = exp((load(line + i) - greatest) * scale);
    store(line + i, share);
    if (i < whole) sums += share;
  }
  for (int i = whole; i < end; ++i) sums[position(i) % kLanes] += line[i];
  const float factor = 1 / sum(sums);
  for (int i = 0; i < end; i += kLanes) store(line + i, load(line + i) * factor);
}

template <class W>
void score_all(const Attention<W>& task) {
  for (int at = 0; at < std::min(kPositionsAhead, task.end); ++at) fetch(task, task.keys, at);
  each_block(task, task.keys, task.values, [&](int at, const Head* heads, const auto& keys) {
    in_turns<kFew>(task.count, [&](auto n, int from) {
      score<decltype(n)::value>(heads + from, keys, task.size, at);
    });
  });
}

template <class W>
void mix_all(const Attention<W>& task) {
  for (int index = 0; index < task.kv_heads * task.count; ++index)
    std::fill_n(task.heads[index].mixed, task.size, 0.0f);
  const W* none = nullptr;
  each_block(task, task.values, none, [&](int at, const Head* heads, const auto& values) {
    const int seen = std::max(0, std::min(kBlock, task.text - at));
    in_turns<4>(task.count, [&](auto n, int from) {
      mix<decltype(n)::value>(heads + from, values, task.size, at, seen);
    });
    for (int p = seen; p < std::min(kBlock, task.end - at); ++p)
      for (int index = 0; index < task.count; ++index) {
        // Zero: a node that the row does not see, whatever is stored there.
        const float share = heads[index].scores[at + p];
        if (share != 0) add_share(share, values.line[p], task.size, heads[index].mixed);
      }
  });
}

// The scores of a row's head to shares of what the row sees.
void share(const Model& model, const Query& query, const Run& run, Task task, int row, int end,
           float* scores) {
  const std::vector<uint8_t>& seen = run.seen[task.query];
  const std::vector<int32_t>& depth = run.depth[task.query];
  const int nodes = query.stored + query.length;
  for (int at = query.start; at < end; ++at) {
    const int node = at - query.start;
    const bool sees = seen.empty() ? node <= query.stored + row : seen[size_t(row) * nodes + node];
    if (!sees) scores[at] = -INFINITY;
  }
  std::fill(scores + end, scores + padded(end), -INFINITY);
  const int whole = seen.empty() ? padded(end) : query.start - query.start % kLanes;
  softmax(scores, whole, padded(end), 1 / std::sqrt(float(model.head_dim)), [&](int at) {
    return at < query.start || at >= end ? at : query.start + depth[at - query.start];
  });
}

template <class W>
void attend(const Model& model, const Layer& layer, const Step& step, const Run& run, Task task,
            const float* qkv, float* mixed, float* scores, Head* heads) {
  const Query& query = step.query[task.query];
  const int size = model.head_dim, shared = model.heads / model.kv_heads;
  const int width = 2 * model.kv_heads * size, qkv_width = width + model.heads * size;
  const int last = query.start + query.stored + task.first + task.rows;
  const bool chain = run.seen[task.query].empty();
  const int end = chain ? last : query.start + query.stored + query.length;
  Head* next = heads;
  for (int kv_head = task.head; kv_head < task.head + task.heads; ++kv_head)
    for (int row = 0; row < task.rows; ++row)
      for (int head = kv_head * shared; head < (kv_head + 1) * shared; ++head, ++next) {
        const size_t own = run.first[task.query] + task.first + row;
        *next = {qkv + own * qkv_width + head * size, scores + (next - heads) * padded(end),
                 mixed + (own * model.heads + head) * size};
      }
  const W* keys = static_cast<const W*>(layer.cache) + task.head * size;
  const Attention<W> attention{keys, keys + model.kv_heads * size, run.slots[task.query].data(),
                               width, size, task.heads, end, chain ? last - task.rows : query.start,
                               heads, task.rows * shared};
  score_all(attention);
  for (int index = 0; index < attention.kv_heads * attention.count; ++index)
    share(model, query, run, task, task.first + index % attention.count / shared, end,
          heads[index].scores);
  mix_all(attention);
}

// -- the pass -----------------------------------------------------------------------------------

void keep_taps(const Model& model, const Step& step, int layer, const float* x) {
  const size_t width = model.hidden;
  for (int tap = 0; tap < step.taps; ++tap) {
    if (step.tap[tap] != layer) continue;
#pragma omp for schedule(static)
    for (int row = 0; row < step.rows; ++row)
      std::copy_n(x + row * width, width, step.tapped + (row * size_t(step.taps) + tap) * width);
  }
}

// x += from, and the norm of the sum, row by row.
void add_and_normalize(const Model& model, int rows, const float* from, const float* scale,
                       float* x, float* normed) {
  const size_t width = model.hidden;
#pragma omp for schedule(static)
  for (int row = 0; row < rows; ++row) {
    float* own = x + row * width;
    for (size_t i = 0; i < width; ++i) own[i] += from[row * width + i];
    normalize(own, scale, model.hidden, model.epsilon, normed + row * width);
  }
}

void activate(const Model& model, int rows, const float* gates, float* inner) {
  constexpr int kColumns = 64;
  const int parts = (model.inner + kColumns - 1) / kColumns;
#pragma omp for schedule(static)
  for (int index = 0; index < rows * parts; ++index) {
    const int row = index / parts, begin = index % parts * kColumns;
    const float* gate = gates + size_t(row) * 2 * model.inner;
    float* out = inner + size_t(row) * model.inner;
    const float* up = gate + model.inner;
    for (int i = begin; i < std::min(begin + kColumns, model.inner); i += kLanes) {
      const int count = std::min(kLanes, model.inner - i);
      const Floats low = count == kLanes ? load(gate + i) : load_some(gate + i, count);
      const Floats active = low / (1.0f + exp(-low));
      if (count == kLanes) store(out + i, active * load(up + i));
      for (int lane = 0; count < kLanes && lane < count; ++lane)
        out[i + lane] = active[lane] * up[i + lane];
    }
  }
}

// One layer, whose input is in space.x and, normed, in space.normed; next: the scale of the norm
// behind it. Barriers stand where all rows or all columns of what was made are needed.
template <class W>
void run_layer(const Model& model, const Layer& layer, const float* next, const Step& step,
               const Run& run, Space& space) {
  const int rows = step.rows, width = (model.heads + 2 * model.kv_heads) * model.head_dim;
  float* scores = space.scores.data() + size_t(run.scores) * omp_get_thread_num();
  Head* heads = space.heads.data() + size_t(run.heads) * omp_get_thread_num();
  float *x = space.x.data(), *normed = space.normed.data(), *delta = space.delta.data();
  float *qkv = space.qkv.data(), *mixed = space.mixed.data();
  multiply(layer.qkv, normed, rows, qkv);
#pragma omp barrier
#pragma omp for schedule(static)
  for (int row = 0; row < rows; ++row)
    prepare<W>(model, layer, run.position[row], run.slot[row], qkv + size_t(row) * width);
#pragma omp for schedule(dynamic)
  for (int task = 0; task < int(run.tasks.size()); ++task)
    attend<W>(model, layer, step, run, run.tasks[task], qkv, mixed, scores, heads);
  multiply(layer.out, mixed, rows, delta);
#pragma omp barrier
  add_and_normalize(model, rows, delta, layer.post_norm, x, normed);
  multiply(layer.gate_up, normed, rows, space.gates.data());
#pragma omp barrier
  activate(model, rows, space.gates.data(), space.inner.data());
  multiply(layer.down, space.inner.data(), rows, delta);
#pragma omp barrier
  add_and_normalize(model, rows, delta, next, x, normed);
}

void look_up(const Matrix& table, int64_t token, float* to) {
  const size_t from = token * size_t(table.columns);
  table.bfloat ? widen(static_cast<const uint16_t*>(table.weight) + from, table.columns, to)
               : widen(static_cast<const float*>(table.weight) + from, table.columns, to);
}

// The tokens' embeddings, and their norm.
void enter(const Model& model, const Step& step, Space& space) {
  const size_t width = model.hidden;
#pragma omp for schedule(static)
  for (int row = 0; row < step.rows; ++row) {
    float* x = &space.x[row * width];
    look_up(model.embedding, step.tokens[row], x);
    normalize(x, model.layer[0].input_norm, model.hidden, model.epsilon, &space.normed[row * width]);
  }
}

// One hidden state of several: what a draft head takes of the target's.
const float* fuse(const Model& model, const Step& step, Space& space) {
  const Entry& entry = model.entry;
  const size_t width = entry.fuse.columns, part = width / entry.fuse_parts;
  const float* states = step.states;
  if (entry.fuse_norm) {
#pragma omp for schedule(static)
    for (int row = 0; row < step.rows; ++row)
      for (size_t at = row * width; at < (row + 1) * width; at += part)
        normalize(states + at, entry.fuse_norm + at % width, int(part), model.epsilon,
                  &space.wide[at]);
    states = space.wide.data();
  }
  multiply(entry.fuse, states, step.rows, space.fused.data());
#pragma omp barrier
  return space.fused.data();
}

// The embeddings of a draft head's tokens, joined to hidden states.
void enter_head(const Model& model, const Step& step, const Run& run, Space& space) {
  const Entry& entry = model.entry;
  const float* states = step.fused ? step.states : fuse(model, step, space);
  const size_t width = model.hidden;
  float* pairs = entry.project.weight ? space.pair.data() : space.normed.data();
  float* x = space.x.data();
#pragma omp for schedule(static)
  for (int row = 0; row < step.rows; ++row) {
    float *first = pairs + row * 2 * width, *second = first + width;
    float *embedded = entry.hidden_first ? second : first;
    float *hidden = entry.hidden_first ? first : second;
    const float* state = states + row * width;
    look_up(model.embedding, step.tokens[row], embedded);
    if (entry.blind_start && run.position[row] == 0) std::fill_n(embedded, width, 0.0f);
    normalize(embedded, entry.token_norm, model.hidden, model.epsilon, embedded);
    normalize(state, entry.hidden_norm, model.hidden, model.epsilon, hidden);
    std::copy_n(entry.normed_residual ? hidden : state, width, x + row * width);
  }
  if (!entry.project.weight) return;
  multiply(entry.project, pairs, step.rows, x);
#pragma omp barrier
#pragma omp for schedule(static)
  for (int row = 0; row < step.rows; ++row)
    normalize(x + row * width, model.layer[0].input_norm, model.hidden, model.epsilon,
              &space.normed[row * width]);
}

// The logits of the picked rows, and all rows after the last norm where they are wanted.
void finish(const Model& model, const Step& step, Space& space) {
  const size_t width = model.hidden;
#pragma omp for schedule(static)
  for (int row = 0; row < step.rows; ++row)
    if (step.normed) std::copy_n(&space.normed[row * width], width, step.normed + row * width);
#pragma omp for schedule(static)
  for (int i = 0; i < step.picked; ++i)
    std::copy_n(&space.normed[step.pick[i] * width], width, &space.delta[i * width]);
  multiply(model.head, space.delta.data(), step.picked, step.logits);
}

template <class W>
void forward(const Model& model, const Step& step, Space& space) {
  const Run run = plan(model, step);
  space.fit(model, step, run);
#pragma omp parallel num_threads(model.threads)
  {
    step.states ? enter_head(model, step, run, space) : enter(model, step, space);
    for (int index = 0; index < model.layers; ++index) {
      keep_taps(model, step, index, space.x.data());
      const bool last = index + 1 == model.layers;
      const float* next = last ? model.final_norm : model.layer[index + 1].input_norm;
      run_layer<W>(model, model.layer[index], next, step, run, space);
    }
    keep_taps(model, step, model.layers, space.x.data());
    finish(model, step, space);
  }
}

}  // namespace

extern "C" {
void* tandem_space() { return new Space; }
void tandem_release(void* space) { delete static_cast<Space*>(space); }
int64_t tandem_packed(int rows, int columns) {  // how many numbers
  return int64_t(groups_of(rows)) * kOutputs * columns;
}
void tandem_pack(const void* weight, int rows, int columns, int bfloat, void* to) {
  bfloat ? pack(static_cast<const uint16_t*>(weight), rows, columns, static_cast<uint16_t*>(to))
         : pack(static_cast<const float*>(weight), rows, columns, static_cast<float*>(to));
}
// y [rows, matrix.rows] = x [rows, matrix.columns] by the transposed weight, and the bias.
void tandem_multiply(const Matrix* matrix, const float* x, int rows, float* y, int threads) {
#pragma omp parallel num_threads(threads)
  multiply(*matrix, x, rows, y);
}
void tandem_forward(const Model* model, const Step* step, void* space) {
  model->bfloat ? forward<uint16_t>(*model, *step, *static_cast<Space*>(space))
                : forward<float>(*model, *step, *static_cast<Space*>(space));
}
}
