// Attention by registers of floats, or where the processor has them (twos.h), and keys and values are
// bfloat16, by products of two: queries go in rounded then, as a linear layer's input does, and so do shares.
//
// A score sums pairs of columns one after the other, or of floats even columns by themselves and odd ones by
// themselves. Values are summed position after position of the text, or pair after pair, what a row does not
// see adding zeros.
#pragma once

#include "cache.h"
#include "numbers.h"
#include "twos.h"

namespace {

inline const uint16_t* rounded_query(const Attention<uint16_t>& task, int index) {
  return task.queries + index / task.count * task.apart + index % task.count * task.size;
}

// A head's query as Q.
template <class Q, class W>
const Q* query_of(const Attention<W>& task, int index) {
  if constexpr (std::is_same_v<Q, float>)
    return task.heads[index].query;
  else
    return rounded_query(task, index);
}

// sum + the products of the numbers from x on with those of words, one of two in a word.
template <class W>
inline Floats add_first(const float* x, Words words, Floats sum) {
  return fused(all(*x), reinterpret_cast<Floats>(kPerWord<W> == 1 ? words : words << 16), sum);
}
#if defined(__AVX512BF16__)
template <class W>  // both
inline Floats add_first(const uint16_t* x, Words words, Floats sum) {
  return add_product<Two>(all(Two{x[0], x[1]}), reinterpret_cast<Floats>(words), sum);
}
#endif
// The other one, where there are two and they have not been added at once.
inline Floats add_second(const float* x, Words words, Floats sum) {
  return fused(all(*x), reinterpret_cast<Floats>(words & 0xffff0000u), sum);
}

// Sums of which a score is one, so that fewer products wait for each other.
template <class Q>
constexpr int kSplit = std::is_same_v<Q, float> ? 2 : 1;

// Products of N heads' queries with the keys of so many pieces that follow each other.
template <int N, int kPieces, class Q, class W>
__attribute__((noinline)) void score(const Head* heads, const Q* const* queries,
                                     const W* const* pieces, int size, int at) {
  constexpr int kParts = kBlock / kLanes, kPer = kPerWord<W>, kSums = kSplit<Q>;
  constexpr bool kApart = kPer == 2 && std::is_same_v<Q, float>;
  Floats sums[N][kPieces * kParts][kSums] = {};
  const auto word = [&](int index, int which) {
    for (int part = 0; part < kPieces * kParts; ++part) {
      const W* from = pieces[part / kParts] + (index * kBlock + part % kParts * kLanes) * kPer;
      const Words keys = load_words(from);
      for (int n = 0; n < N; ++n) {
        const Q* x = queries[n] + index * kPer;
        sums[n][part][which] = add_first<W>(x, keys, sums[n][part][which]);
        if constexpr (kApart) sums[n][part][1] = add_second(x + 1, keys, sums[n][part][1]);
      }
    }
  };
  constexpr int kStep = kApart ? 1 : kSums;  // (heads have an even number of columns)
  const int words = size / kPer;
  for (int index = 0; index + kStep <= words; index += kStep)
    for (int i = 0; i < kStep; ++i) word(index + i, i);
  for (int n = 0; n < N; ++n)
    for (int part = 0; part < kPieces * kParts; ++part) {
      const Floats* own = sums[n][part];
      store(heads[n].scores + at + part * kLanes, kSums == 1 ? own[0] : own[0] + own[kSums - 1]);
    }
}

// Adds the values of so many pieces to what N heads mix of kParts registers of columns, by their shares.
template <int N, int kParts, class Q, class W>
__attribute__((noinline)) void mix_columns(const Q* const* shares, const W* const* pieces, int count,
                                           int size, int column, float* sums, int width) {
  constexpr int kPer = kPerWord<W>;
  Floats own[N][kParts];
  for (int n = 0; n < N; ++n)
    for (int k = 0; k < kParts; ++k) own[n][k] = load(sums + n * width + column + k * kLanes);
  for (int piece = 0; piece < count; ++piece)
    for (int at = 0; at < kBlock; at += kPer)
      for (int k = 0; k < kParts; ++k) {
        const Words values = load_words(pieces[piece] + at * size + (column + k * kLanes) * kPer);
        for (int n = 0; n < N; ++n) {
          const Q* x = shares[n] + piece * kBlock + at;
          own[n][k] = add_first<W>(x, values, own[n][k]);
          if constexpr (kPer == 2 && std::is_same_v<Q, float>)
            own[n][k] = add_second(x + 1, values, own[n][k]);
        }
      }
  for (int n = 0; n < N; ++n)
    for (int k = 0; k < kParts; ++k) store(sums + n * width + column + k * kLanes, own[n][k]);
}

template <int N, class Q, class W>
void mix(const Q* const* shares, const W* const* pieces, int count, int size, float* sums) {
  constexpr int kMost = N <= 2 ? 4 : 2;  // that many sums fit the registers
  const int width = sum_columns(size);
  int i = 0;
  for (; i + kMost * kLanes <= width; i += kMost * kLanes)
    mix_columns<N, kMost>(shares, pieces, count, size, i, sums, width);
  for (; i < width; i += kLanes) mix_columns<N, 1>(shares, pieces, count, size, i, sums, width);
}

// Heads at once, whose sums fit the registers.
constexpr int kScored = kLanes == 8 ? 3 : 8, kMixed = kLanes == 8 ? 4 : 8;

// Pieces that are read together, with each load of a query's or a share's numbers; and whose products are
// summed at once.
constexpr int kRun = 4;
template <class Q>
constexpr int kScoredPieces = std::is_same_v<Q, float> ? 1 : 2;

// Q: `Factor`.
template <class Q, class W>
void score_by_vectors(const Attention<W>& task, Coming<W>& coming) {
  Room<W> room;
  each_chunk(task, [&](int begin, int end, int kv_head) {
    const W* pieces[kChunk / kBlock];
    const int count = up(end - begin, kBlock);
    for (int i = 0; i < count; ++i) pieces[i] = keys_at(task, begin + i * kBlock, kv_head, room);
    in_turns<kScoredPieces<Q>>(count, [&](auto some, int first) {
      for (int i = 0; i < some; ++i) coming.next();
      in_turns<kScored>(task.count, [&](auto n, int from) {
        const Q* queries[n];
        for (int head = 0; head < n; ++head)
          queries[head] = query_of<Q>(task, kv_head * task.count + from + head);
        score<n, some>(task.heads + kv_head * task.count + from, queries, pieces + first, task.size,
                       begin + first * kBlock);
      });
    });
  });
}

// Values of so many pieces, mixed by the shares of so many heads, [heads, line], into sums.
template <class Q, class W>
void mix_pieces(const Q* shares, int line, int heads, const W* const* pieces, int count, int size,
                float* sums) {
  in_turns<kMixed>(heads, [&](auto n, int from) {
    const Q* own[n];
    for (int head = 0; head < n; ++head) own[head] = shares + size_t(from + head) * line;
    mix<n>(own, pieces, count, size, sums + from * sum_columns(size));
  });
}

// Calls `use` with what each row sees of a KV head's values behind `whole`: the text's end, and its own
// path's nodes, in the order that they have in the text. It gets the row's first head, a piece of values,
// and its heads' shares of them, [shared, kBlock].
template <class Q, class W, class Use>
void each_path(const Attention<W>& task, int kv_head, Use use) {
  Room<W> room;
  std::vector<Q> shares(size_t(task.shared) * kBlock);
  for (int first = 0; first < task.count; first += task.shared) {
    const Head* heads = task.heads + kv_head * task.count + first;
    const std::vector<int32_t>& path = task.paths[first / task.shared];
    const int end = task.text + int(path.size());
    for (int at = task.whole(); at < end; at += kBlock) {
      const int some = std::min(kBlock, end - at);
      int32_t slots[kBlock];
      std::fill(shares.begin(), shares.end(), Q(0));
      for (int i = 0; i < some; ++i) {
        const int node = at + i - task.text, place = node < 0 ? at + i : task.text + path[node];
        slots[i] = task.slots[place];
        for (int head = 0; head < task.shared; ++head)
          shares[head * kBlock + i] = reinterpret_cast<const Q*>(heads[head].scores)[place];
      }
      gather_values(task, kv_head, slots, some, room);
      use(first, room.piece, shares.data());
    }
  }
}

template <class Q, class W>
void mix_by_vectors(const Attention<W>& task, Coming<W>& coming) {
  constexpr int kWidth = sizeof(float) / sizeof(Q);
  const int width = sum_columns(task.size), size = tiled_rows(task.count) * width;
  const int whole = task.whole();
  Room<W> room;
  each_chunk(task, [&](int begin, int end, int kv_head) {
    const auto* shares = reinterpret_cast<const Q*>(task.heads[kv_head * task.count].scores);
    const W* pieces[kRun];
    for (int at = begin; at < end; at += kRun * kBlock) {
      for (int i = 0; i < std::min(kRun, up(end - at, kBlock)); ++i) coming.next();
      const int count = std::min(kRun, up(std::min(end, whole) - at, kBlock));
      for (int i = 0; i < count; ++i)
        pieces[i] = values_at(task, at + i * kBlock, whole, kv_head, room);
      if (count <= 0) continue;
      mix_pieces(shares + at, task.line * kWidth, task.count, pieces, count, task.size,
                 task.sums + kv_head * size);
    }
  });
  for (int head = 0; whole < task.end && head < task.kv_heads; ++head)
    each_path<Q>(task, head, [&](int first, const W* piece, const Q* shares) {
      mix_pieces(shares, kBlock, task.shared, &piece, 1, task.size,
                 task.sums + head * size + first * width);
    });
}

}  // namespace
