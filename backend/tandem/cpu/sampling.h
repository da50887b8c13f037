// Which tokens a row may take, and one of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "numbers.h"
#include "structures.h"

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// What one thread needs.
struct Draws {
  std::vector<uint64_t> best;   // tokens of one row by their scores
  std::vector<float> weights;   // [vocabulary] of one row, in proportion to its probabilities
  std::vector<double> sums;     // of each kTokens weights
  std::vector<float> scores;    // [vocabulary] of one row
  std::vector<float> edited;    // logits of one row
  std::vector<int32_t> marks;   // [vocabulary], zeros between calls
};
constexpr int kTokens = 256;

// Orders as (score, the lower id first) does.
inline uint64_t ranked(float score, int id) {
  uint32_t bits;
  score += 0.0f;  // -0 is 0
  std::memcpy(&bits, &score, 4);
  bits = bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t(bits) << 32 | uint32_t(~id);
}
inline int id_of(uint64_t rank) { return int(~uint32_t(rank)); }

inline float highest_of(const float* scores, int vocabulary) {
  Floats lanes = all(kNever);
  int i = 0;
  for (; i + kLanes <= vocabulary; i += kLanes) lanes = greater(load(scores + i), lanes);
  float highest = greatest(lanes);
  for (; i < vocabulary; ++i) highest = std::max(highest, scores[i]);
  return highest;
}

// ---- truncation ----

// The scores of at least `lowest` that are possible at all.
void gather(const float* scores, int vocabulary, float lowest, std::vector<uint64_t>& found) {
  found.clear();
  for (int i = 0; i < vocabulary; ++i)
    if (scores[i] >= lowest && scores[i] > kNever) found.push_back(ranked(scores[i], i));
}

// Sorts what is found, and only the first `limit` stay.
void keep_first(std::vector<uint64_t>& found, size_t limit) {
  if (found.size() > limit) {
    std::nth_element(found.begin(), found.begin() + limit, found.end(), std::greater<>());
    found.resize(limit);
  }
  std::sort(found.begin(), found.end(), std::greater<>());
}

// How many of the best together reach the mass, at least one; all, if they do not.
size_t reaching(const std::vector<uint64_t>& best, const float* scores, float highest,
                double mass) {
  double before = 0;
  for (size_t i = 0; i < best.size(); ++i) {
    if (i && before >= mass) return i;
    before += std::exp(double(scores[id_of(best[i])]) - highest);
  }
  return best.size();
}

// Of the scores of at least `lowest`.
double mass_of(const float* scores, int vocabulary, float highest, float lowest) {
  double mass = 0;
  for (int i = 0; i < vocabulary;) {
    Floats part = {};
    const int end = std::min(vocabulary, i + kTokens);
    for (; i + kLanes <= end; i += kLanes) {
      const Floats some = load(scores + i);
      part += some >= lowest ? exp(some - highest) : all(0.0f);
    }
    mass += sum(part);
    for (; i < end; ++i) mass += scores[i] >= lowest ? std::exp(scores[i] - highest) : 0.0f;
  }
  return mass;
}

// A score that the fewest which reach the mass do not fall below: few others should be sorted.
float lowest_kept(const float* scores, int vocabulary, float highest, double mass) {
  for (float depth : {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f, 8.0f, 10.0f, 13.0f})
    if (mass_of(scores, vocabulary, highest, highest - depth) >= mass) return highest - depth;
  return kNever;
}

// The k best, and of those the fewest that reach mass p.
void find_kept(const float* scores, int vocabulary, float highest, const Limits& limits,
               std::vector<uint64_t>& best) {
  if (limits.top_k >= vocabulary) {
    // Sums in another order must not leave out the last one.
    constexpr double kRounding = 1 + 1e-5;
    const double mass = mass_of(scores, vocabulary, highest, kNever) * limits.top_p;
    gather(scores, vocabulary, lowest_kept(scores, vocabulary, highest, mass * kRounding), best);
    keep_first(best, vocabulary);
    return best.resize(reaching(best, scores, highest, mass));
  }
  for (float depth : {3.0f, 6.0f, 12.0f, -kNever}) {
    gather(scores, vocabulary, highest - depth, best);
    if (best.size() >= size_t(limits.top_k)) break;
  }
  keep_first(best, limits.top_k);
  if (limits.top_p >= 1) return;  // whatever rounding makes of the sum
  double mass = 0;
  for (uint64_t rank : best) mass += std::exp(double(scores[id_of(rank)]) - highest);
  best.resize(reaching(best, scores, highest, mass * limits.top_p));
}

// Logits to scores: by temperature; what min-p, then top-k, then top-p rule out cannot be drawn.
void limit_row(const float* logits, int vocabulary, const Limits& limits, Draws& draws,
               float* scores) {
  for (int i = 0; i < vocabulary; ++i) scores[i] = logits[i] / limits.temperature;
  const float highest = highest_of(scores, vocabulary);
  if (limits.min_p > 0) {
    const float floor = highest + std::log(limits.min_p);
    for (int i = 0; i < vocabulary; ++i) scores[i] = scores[i] < floor ? kNever : scores[i];
  }
  if (limits.top_k >= vocabulary && limits.top_p >= 1) return;
  if (highest == kNever) return;  // nothing is possible
  find_kept(scores, vocabulary, highest, limits, draws.best);
  draws.weights.clear();
  for (uint64_t rank : draws.best) draws.weights.push_back(scores[id_of(rank)]);
  std::fill_n(scores, vocabulary, kNever);
  for (size_t i = 0; i < draws.best.size(); ++i) scores[id_of(draws.best[i])] = draws.weights[i];
}

// ---- draws ----

inline uint64_t mix(uint64_t x) {  // SplitMix64's (Steele et al. 2014), as verification/noise.py
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return x ^ x >> 31;
}
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;
constexpr double kUnit = 1.0 / (1ull << 53);

// The place-th number of a key's, between 0 and 1 and neither.
inline double uniform(uint64_t key, uint64_t place) {
  return (double(mix(key + (place + 1) * kGolden) >> 11) + 0.5) * kUnit;
}

// Of a row in a launch.
inline uint64_t key_of(uint64_t seed, uint64_t row) { return mix(mix(seed) + kGolden * (row + 1)); }

int best_of(const float* scores, int vocabulary) {  // of equals the first
  const float highest = highest_of(scores, vocabulary);
  return int(std::find(scores, scores + vocabulary, highest) - scores) % vocabulary;
}

// e to the scores' distances from the best. Returns whether anything is possible.
bool weigh(const float* scores, int vocabulary, std::vector<float>& weights) {
  const float highest = highest_of(scores, vocabulary);
  weights.resize(vocabulary);
  if (highest == kNever) return false;
  int i = 0;
  for (; i + kLanes <= vocabulary; i += kLanes) store(&weights[i], exp(load(scores + i) - highest));
  for (; i < vocabulary; ++i) weights[i] = exp(all(scores[i] - highest))[0];
  return true;
}

// The sum of what `weigh` finds, but for some millionths of it.
float sum_of_weights(const float* scores, int vocabulary, float highest) {
  constexpr int kApart = 4;  // sums, none of which waits for another
  const auto weight = [&](Floats score) { return power_of_two((score - highest) * kLog2OfE); };
  Floats sums[kApart] = {};
  int i = 0;
  for (; i + kApart * kLanes <= vocabulary; i += kApart * kLanes)
    for (int apart = 0; apart < kApart; ++apart) sums[apart] += weight(load(scores + i + apart * kLanes));
  for (; i + kLanes <= vocabulary; i += kLanes) sums[0] += weight(load(scores + i));
  float whole = sum(sums[0] + sums[1] + (sums[2] + sums[3]));
  for (; i < vocabulary; ++i) whole += weight(all(scores[i]))[0];
  return whole;
}

// The token with the largest score + noise, where noise = -log(-log(u)): the one with the smallest
// -log(u) / weight. As -log(u) is at least 1 - u, few logarithms are asked for.
// ids: the names of tokens that noise goes by, or null.
int draw_by_key(const float* scores, int vocabulary, uint64_t key, Draws& draws,
                const int64_t* ids = nullptr) {
  if (!weigh(scores, vocabulary, draws.weights)) return 0;
  double first = std::numeric_limits<double>::infinity();
  int found = 0;
  for (int i = 0; i < vocabulary; ++i) {
    const double weight = draws.weights[i];
    if (weight == 0) continue;
    const double u = uniform(key, ids ? ids[i] : i);
    if (1 - u >= first * weight) continue;
    const double waited = -std::log(u) / weight;
    if (waited < first) first = waited, found = i;
  }
  return found;
}

double sum_blocks(Draws& draws) {
  const int count = int(draws.weights.size());
  double whole = 0;
  draws.sums.clear();
  for (int begin = 0; begin < count; begin += kTokens) {
    const int end = std::min(count, begin + kTokens);
    Floats part = {};
    int i = begin;
    for (; i + kLanes <= end; i += kLanes) part += load(&draws.weights[i]);
    double block = sum(part);
    for (; i < end; ++i) block += draws.weights[i];
    draws.sums.push_back(block);
    whole += block;
  }
  return whole;
}

// The first token up to which the weights sum to more than `left`. What has no weight is never found.
int find_by_sum(const Draws& draws, double left) {
  const int count = int(draws.weights.size());
  int found = 0;
  size_t block = 0;
  while (block + 1 < draws.sums.size() && left >= draws.sums[block]) left -= draws.sums[block++];
  for (int i = int(block) * kTokens; i < count; ++i) {
    if (!(draws.weights[i] > 0)) continue;
    found = i;
    if ((left -= draws.weights[i]) < 0) break;
  }
  return found;
}

// Draws by the launch's random numbers; where a drafted token is judged, keeps it with probability
// min(1, p / q), or else draws from max(0, p - q). Where all that a draft could say was forbidden, its
// q is no distribution: nothing was drawn from it.
int draw_freely(const float* scores, int vocabulary, const RowPlan& plan, const float* q,
                uint64_t key, Draws& draws, int8_t& kept) {
  if (!weigh(scores, vocabulary, draws.weights)) return 0;
  double whole = sum_blocks(draws);
  if (plan.q_row >= 0) {
    const float* own = q + plan.q_row * size_t(vocabulary);
    const double p = draws.weights[plan.token] / whole;
    kept = uniform(key, 0) * own[plan.token] < p;  // never by a q that is no number
    if (kept) return plan.token;
    const float share = float(1 / whole);
    for (int i = 0; i < vocabulary; ++i) {
      const float over = draws.weights[i] * share - (own[i] > 0 ? own[i] : 0.0f);
      draws.weights[i] = over > 0 ? over : 0.0f;
    }
    whole = sum_blocks(draws);
    if (whole == 0) {  // rounding: p and q are the same
      weigh(scores, vocabulary, draws.weights);
      whole = sum_blocks(draws);
    }
  }
  return find_by_sum(draws, uniform(key, 1) * whole);
}

enum Noise { kGreedy, kKeyed, kRandom };

int draw_row(const float* scores, int vocabulary, const RowPlan& plan, const float* q,
             uint64_t key, Draws& draws, int8_t& kept) {
  kept = 0;
  if (plan.noise == kGreedy) return best_of(scores, vocabulary);
  if (plan.noise == kKeyed) return draw_by_key(scores, vocabulary, plan.key, draws);
  return draw_freely(scores, vocabulary, plan, q, key, draws, kept);
}

}  // namespace
