// A dense decoder's forward pass on CPU cores: every weight is read once, and every key and value
// of a request once for all rows of its draft tree. Weights and the KV cache are float or bfloat16,
// arithmetic is float. One parallel region from the tokens, and for a draft head the target's hidden
// states, to the logits.
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
inline Floats all(float value) { return Floats{} + value; }
inline float sum(Floats value) {  // by halves
  float parts[kLanes];
  std::memcpy(parts, &value, sizeof parts);
  for (int half = kLanes / 2; half; half /= 2)
    for (int lane = 0; lane < half; ++lane) parts[lane] += parts[lane + half];
  return parts[0];
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
  for (int i = 0; i < count; ++i) to[i] = widen(from[i]);
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
constexpr int kRows = 32;  // of a query that attend together, over one reading of the cache

struct Task {
  int32_t query, first, rows;  // `first` counts from the query's first row
};

struct Run {
  std::vector<int32_t> position, slot;     // [rows]
  std::vector<int32_t> first;              // [queries] first row of each
  std::vector<std::vector<uint8_t>> seen;  // [queries] [length, stored + length]; empty: a chain
  std::vector<std::vector<int32_t>> depth;  // [queries] [stored + length] of each node
  std::vector<Task> tasks;
  int scores = 0;  // most scores that a task needs
};

// What a pass needs room for, kept from pass to pass; all but the last are [rows, ...].
struct Space {
  std::vector<float> x, normed, wide, fused, pair, qkv, mixed, gates, inner, delta, scores;

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
  }

 private:
  static void grow(std::vector<float>& part, size_t size) {
    if (part.size() < size) part.resize(size);
  }
};

inline int slot_of(const Step& step, const Query& query, int at, int block_size) {
  return step.blocks[query.blocks + at / block_size] * block_size + at % block_size;
}

inline int padded(int count) { return (count + kLanes - 1) / kLanes * kLanes; }

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
    for (int begin = 0; begin < query.length; begin += kRows) {
      run.tasks.push_back({q, begin, std::min(kRows, query.length - begin)});
      const int vectors = run.tasks.back().rows * (model.heads / model.kv_heads);
      run.scores = std::max(run.scores, vectors * padded(query.start + nodes));
    }
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
      run.slot[row] = slot_of(step, query, query.start + node, model.block_size);
    }
  }
  return run;
}

// -- matrices -----------------------------------------------------------------------------------

// Weights lie as they are read, so that memory is read in a straight line: two outputs side by
// side, kChunk columns of the one, then of the other. In bfloat16 the chunk's column i shares a
// word with column i + kLanes. What is missing of the last pair or chunk is zero.
constexpr int kPair = 2;
constexpr int kChunk = 2 * kLanes;
constexpr int kMostRows = 6;  // at once: more sums than that by two do not fit AVX2's registers
constexpr int kPanel = 32;    // outputs whose weights stay in the cache while rows pass by
constexpr int kAhead = 2048;  // bytes of weights that are on their way

inline size_t padded_columns(int columns) { return (size_t(columns) + kChunk - 1) / kChunk * kChunk; }

template <class W>
void pack(const W* weight, int rows, int columns, W* to) {
  const size_t width = padded_columns(columns);
#pragma omp parallel for schedule(static)
  for (int row = 0; row < rows + rows % kPair; ++row)
    for (size_t k = 0; k < width; ++k) {
      const size_t within = k % kChunk;
      size_t place = within;
      if (sizeof(W) == 2) place = within < kLanes ? 2 * within : 2 * (within - kLanes) + 1;
      const size_t chunk = (row / kPair * (width / kChunk) + k / kChunk) * kPair + row % kPair;
      const bool inside = row < rows && k < size_t(columns);
      to[chunk * kChunk + place] = inside ? weight[size_t(row) * columns + k] : W(0);
    }
}

struct Chunk {
  Floats low, high;
};
inline Chunk load_chunk(const float* from) { return {load(from), load(from + kLanes)}; }
inline Chunk load_chunk(const uint16_t* from) {
  const Words words = *reinterpret_cast<const Words*>(from);
  return {reinterpret_cast<Floats>(words << 16), reinterpret_cast<Floats>(words & 0xffff0000u)};
}

// A pair of outputs of M rows.
template <class W, int M>
inline void tile(const float* x, const W* w, int columns, const float* bias, int outputs, float* y,
                 int width) {
  Floats sums[M][kPair] = {};
  const auto step = [&](int k, auto load_x) {
    for (int byte = 0; byte < int(kPair * kChunk * sizeof(W)); byte += 64)
      __builtin_prefetch(reinterpret_cast<const char*>(w) + kAhead + byte);
    for (int n = 0; n < kPair; ++n, w += kChunk) {
      const Chunk weights = load_chunk(w);
      for (int m = 0; m < M; ++m) {
        const float* own = x + size_t(m) * columns;
        sums[m][n] = fused(load_x(own, k), weights.low, sums[m][n]);
        sums[m][n] = fused(load_x(own, k + kLanes), weights.high, sums[m][n]);
      }
    }
  };
  int k = 0;
  for (; k + kChunk <= columns; k += kChunk)
    step(k, [](const float* own, int at) { return load(own + at); });
  if (k < columns)
    step(k, [&](const float* own, int at) {
      return load_some(own + at, std::max(0, std::min(kLanes, columns - at)));
    });
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < outputs; ++n)
      y[size_t(m) * width + n] = sum(sums[m][n]) + (bias ? bias[n] : 0);
}

template <class W, int M>
inline void panel(const float* x, const Matrix& matrix, int begin, int end, float* y) {
  const size_t pair = kPair * padded_columns(matrix.columns);
  for (int n = begin; n < end; n += kPair)
    tile<W, M>(x, static_cast<const W*>(matrix.weight) + n / kPair * pair, matrix.columns,
               matrix.bias ? matrix.bias + n : nullptr, std::min(kPair, end - n), y + n,
               matrix.rows);
}

template <class W>
void multiply_as(const Matrix& matrix, const float* x, int rows, float* y) {
  const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
  const int pairs = (matrix.rows + kPair - 1) / kPair;
  const int blocks = (rows + kMostRows - 1) / kMostRows;  // of rows, alike
  const int begin = int(pairs * thread / threads) * kPair;
  const int end = std::min(int(pairs * (thread + 1) / threads) * kPair, matrix.rows);
  for (int from = begin; from < end; from += kPanel) {
    const int to = std::min(from + kPanel, end);
    for (int block = 0; block < blocks; ++block) {
      const int m = rows * block / blocks;
      const float* in = x + size_t(m) * matrix.columns;
      float* out = y + size_t(m) * matrix.rows;
      switch (rows * (block + 1) / blocks - m) {
        case 1: panel<W, 1>(in, matrix, from, to, out); break;
        case 2: panel<W, 2>(in, matrix, from, to, out); break;
        case 3: panel<W, 3>(in, matrix, from, to, out); break;
        case 4: panel<W, 4>(in, matrix, from, to, out); break;
        case 5: panel<W, 5>(in, matrix, from, to, out); break;
        default: panel<W, kMostRows>(in, matrix, from, to, out);
      }
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

// to += share * from
void add_share(float share, const float* from, int width, float* to) {
  const int whole = width - width % kLanes;
  for (int i = 0; i < whole; i += kLanes)
    store(to + i, fused(all(share), load(from + i), load(to + i)));
  for (int i = whole; i < width; ++i)
    to[i] = fused(all(share), all(from[i]), all(to[i]))[0];
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

// Turns a row's scores into shares. Up to `whole` a score's place is its position in the text;
// behind it, `position` says. Sums go by position, so that a tree's path sums as the text will.
template <class Position>
void softmax(float* line, int whole, int end, Position position) {
  float most = -INFINITY;
  for (int i = 0; i < end; ++i) most = std::max(most, line[i]);
  Floats sums = {};
  for (int i = 0; i < whole; i += kLanes) {
    const Floats share = exp(load(line + i) - most);
    store(line + i, share);
    sums += share;
  }
  for (int i = whole; i < end; ++i) {
    line[i] = exp(all(line[i] - most))[0];
    sums[position(i) % kLanes] += line[i];
  }
  const float total = sum(sums);
  for (int i = 0; i < end; ++i) line[i] /= total;
}

constexpr int kBlock = 8;  // positions whose keys or values are read together
constexpr int kBlocksAhead = 4;

// Keys or values of the positions from `begin`, zeros from `end` on: [kBlock, size]. Those of some
// blocks on are fetched meanwhile: a head's lie too far apart for the processor to foresee.
template <class W, class Slot>
void widen_block(const W* from, Slot slot, int begin, int end, int size, float* wide) {
  for (int at = begin; at < begin + kBlock; ++at, wide += size) {
    const int later = at + kBlocksAhead * kBlock;
    for (int i = 0; later < end && i < size; i += 64 / int(sizeof(W)))
      __builtin_prefetch(from + slot(later) + i);
    at < end ? widen(from + slot(at), size, wide) : void(std::fill_n(wide, size, 0.0f));
  }
}

// A query's products with the keys of a block.
void score_block(const float* query, const float* wide, int size, float scale, float* scores) {
  Floats sums[kBlock] = {};
  const int whole = size - size % kLanes;
  for (int i = 0; i < whole; i += kLanes)
    for (int p = 0; p < kBlock; ++p)
      sums[p] = fused(load(query + i), load(wide + p * size + i), sums[p]);
  if (whole < size)
    for (int p = 0; p < kBlock; ++p)
      sums[p] = fused(load_some(query + whole, size - whole),
                      load_some(wide + p * size + whole, size - whole), sums[p]);
  for (int p = 0; p < kBlock; ++p) scores[p] = sum(sums[p]) * scale;
}

// Adds the values of a block by their shares.
void mix_block(const float* shares, const float* wide, int size, float* mixed) {
  const int whole = size - size % kLanes;
  for (int i = 0; i < whole; i += kLanes) {
    Floats sums = load(mixed + i);
    for (int p = 0; p < kBlock; ++p) sums = fused(all(shares[p]), load(wide + p * size + i), sums);
    store(mixed + i, sums);
  }
  for (int p = 0; p < kBlock; ++p)
    if (whole < size) add_share(shares[p], wide + p * size + whole, size - whole, mixed + whole);
}

// One KV head of a task: all its rows and query heads over one reading of the cache.
template <class W>
void attend(const Model& model, const Layer& layer, const Step& step, const Run& run, Task task,
            int kv_head, const float* qkv, float* mixed, float* scores) {
  const Query& query = step.query[task.query];
  const std::vector<uint8_t>& seen = run.seen[task.query];
  const int size = model.head_dim, shared = model.heads / model.kv_heads;
  const int width = 2 * model.kv_heads * size, qkv_width = width + model.heads * size;
  const int nodes = query.stored + query.length, count = task.rows * shared;
  const int last = query.start + query.stored + task.first + task.rows;
  const int end = seen.empty() ? last : query.start + nodes, line_width = padded(end);
  const W* keys = static_cast<const W*>(layer.cache) + kv_head * size;
  const W* values = keys + model.kv_heads * size;
  const float scale = 1 / std::sqrt(float(size));
  const auto row_of = [&](int index) {
    return size_t(run.first[task.query] + task.first + index / shared);
  };
  const auto head_of = [&](int index) { return (kv_head * shared + index % shared) * size; };
  const auto slot = [&](int at) {
    return size_t(slot_of(step, query, at, model.block_size)) * width;
  };
  const auto position = [&](int at) {
    return at < query.start ? at : query.start + run.depth[task.query][at - query.start];
  };
  float wide[kBlock * kWidest];
  for (int at = 0; at < end; at += kBlock) {
    widen_block(keys, slot, at, end, size, wide);
    for (int index = 0; index < count; ++index)
      score_block(qkv + row_of(index) * qkv_width + head_of(index), wide, size, scale,
                  scores + size_t(index) * line_width + at);
  }
  for (int index = 0; index < count; ++index) {
    float* line = scores + size_t(index) * line_width;
    const int row = task.first + index / shared;
    for (int at = query.start; at < end; ++at) {
      const int node = at - query.start;
      const bool sees =
          seen.empty() ? node <= query.stored + row : seen[size_t(row) * nodes + node];
      if (!sees) line[at] = -INFINITY;
    }
    std::fill(line + end, line + line_width, -INFINITY);
    const int whole = seen.empty() ? line_width : query.start - query.start % kLanes;
    softmax(line, whole, std::max(whole, end), position);
    std::fill_n(mixed + row_of(index) * model.heads * size + head_of(index), size, 0.0f);
  }
  const auto out = [&](int index) {
    return mixed + row_of(index) * model.heads * size + head_of(index);
  };
  const int text = seen.empty() ? last - task.rows : query.start;  // what all rows see
  for (int at = 0; at < end; at += kBlock) {
    widen_block(values, slot, at, end, size, wide);
    for (int index = 0; index < count; ++index) {
      const float* shares = scores + size_t(index) * line_width + at;
      if (at + kBlock <= text) {
        mix_block(shares, wide, size, out(index));
        continue;
      }
      for (int p = 0; p < std::min(kBlock, end - at); ++p)
        // Zero: a node that the row does not see, whatever is stored there.
        if (shares[p] != 0) add_share(shares[p], wide + p * size, size, out(index));
    }
  }
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
  const int parts = (model.inner + kPanel - 1) / kPanel;
#pragma omp for schedule(static)
  for (int index = 0; index < rows * parts; ++index) {
    const int row = index / parts, begin = index % parts * kPanel;
    const float* gate = gates + size_t(row) * 2 * model.inner;
    float* out = inner + size_t(row) * model.inner;
    const float* up = gate + model.inner;
    for (int i = begin; i < std::min(begin + kPanel, model.inner); i += kLanes) {
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
  float *x = space.x.data(), *normed = space.normed.data(), *delta = space.delta.data();
  float *qkv = space.qkv.data(), *mixed = space.mixed.data();
  multiply(layer.qkv, normed, rows, qkv);
#pragma omp barrier
#pragma omp for schedule(static)
  for (int row = 0; row < rows; ++row)
    prepare<W>(model, layer, run.position[row], run.slot[row], qkv + size_t(row) * width);
#pragma omp for schedule(dynamic)
  for (int task = 0; task < int(run.tasks.size()) * model.kv_heads; ++task)
    attend<W>(model, layer, step, run, run.tasks[task / model.kv_heads], task % model.kv_heads,
              qkv, mixed, scores);
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
  return (rows + rows % kPair) * int64_t(padded_columns(columns));
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
