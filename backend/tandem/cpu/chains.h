// Chains of draft tokens: each token is drawn behind the one before it, with a pass between two.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "pass.h"
#include "penalties.h"
#include "sampling.h"

namespace {

// A chain that still grows, and its row in the last pass.
struct Growing {
  int chain, row;
};

// A model's weights as shares over the target's vocabulary.
void spread_shares(const std::vector<float>& weights, double whole, const Chains& chains,
                   const int64_t* ids, float* q) {
  const float share = float(1 / whole);
  if (ids) std::fill_n(q, chains.vocabulary, 0.0f);
  for (size_t i = 0; i < weights.size(); ++i) q[ids ? ids[i] : int64_t(i)] = weights[i] * share;
}

bool edits(const Chain& chain) { return chain.biases || penalizes(chain.text); }

// The place of each of the target's tokens in a model's own vocabulary, or -1.
std::vector<int32_t> places_of(const int64_t* ids, int own, int vocabulary) {
  std::vector<int32_t> places(vocabulary, -1);
  for (int i = 0; i < own; ++i) places[ids[i]] = i;
  return places;
}

// The logits [width] by biases, then by what the text says and what the chain has drafted since.
const float* edit(const Chains& chains, const Chain& chain, const float* logits, int width,
                  const int32_t* places, const Drafted& drafted, Draws& draws) {
  draws.edited.assign(logits, logits + width);
  const Edited row{draws.edited.data(), width, places};
  for (int i = 0; i < chain.biases; ++i) {
    const Bias& bias = chains.bias[chain.bias + i];
    if (float* found = row.of(bias.token)) *found += bias.added;
  }
  draws.marks.resize(chains.vocabulary);
  if (penalizes(chain.text)) penalize(row, chain.text, chains.texts, drafted, draws.marks);
  return row.logits;
}

// Whether a chain goes on.
struct Gate {
  float least;
  const float* kept;  // of the chain's noise
  float *sure, *reach;

  // The weights have this sum, the likeliest token's being 1; none or no number where logits are not
  // finite, and then it is sure of nothing.
  bool opens(double whole) {
    *sure = whole > 0.5 ? std::min(1.0f, float(1 / whole)) : 0;
    *reach *= kept[std::min(int(*sure * kShares), kShares - 1)];
    return *reach >= least;
  }
  // The same of a row of scores, of which this is the highest.
  bool opens_for(const float* scores, int vocabulary, float highest) {
    return !least || highest == kNever || opens(sum_of_weights(scores, vocabulary, highest));
  }
};

Gate gate_of(const Chains& chains, int index, size_t at) {
  if (!chains.least) return {};
  return {chains.least, chains.kept + chains.chain[index].noise * kShares, &chains.sure[at],
          &chains.reach[index]};
}

constexpr int64_t kNoToken = -1;

// The chain's next token, of logits [vocabulary], or none; ids: what the model's own tokens are to the
// target.
int64_t draw_chained(const Chains& chains, const Chain& chain, const float* logits, int vocabulary,
                     const int64_t* ids, uint64_t key, float* q, Gate gate, Draws& draws) {
  const auto named = [&](int token) { return ids ? ids[token] : token; };
  if (chain.noise == kGreedy) {
    const int best = best_of(logits, vocabulary);
    return gate.opens_for(logits, vocabulary, logits[best]) ? named(best) : kNoToken;
  }
  draws.scores.resize(vocabulary);
  const float* scores = draws.scores.data();
  limit_row(logits, vocabulary, chain.limits, draws, draws.scores.data());
  if (chain.noise == kKeyed) {
    if (gate.least && !gate.opens_for(scores, vocabulary, highest_of(scores, vocabulary))) return kNoToken;
    return named(draw_by_key(scores, vocabulary, key, draws, ids));
  }
  if (!weigh(scores, vocabulary, draws.weights)) {  // such a q is never followed
    std::fill_n(q, chains.vocabulary, std::numeric_limits<float>::quiet_NaN());
    return named(0);
  }
  const double whole = sum_blocks(draws);
  if (gate.least && !gate.opens(whole)) return kNoToken;
  spread_shares(draws.weights, whole, chains, ids, q);
  return named(find_by_sum(draws, uniform(key, 1) * whole));
}

// Of all that grow, within a parallel region.
void draw_all(const Chains& chains, const std::vector<Growing>& growing, int depth,
              const float* logits, int vocabulary, const int64_t* ids, const int32_t* places,
              Space& space) {
  space.team.each_uneven(int(growing.size()), [&](int i) {
    const int index = growing[i].chain;
    const size_t at = index * size_t(chains.longest) + depth;
    const Chain& chain = chains.chain[index];
    Draws& draws = space.draws[omp_get_thread_num()];
    const float* row = logits + i * size_t(vocabulary);
    if (edits(chain))
      row = edit(chains, chain, row, vocabulary, places, {&chains.tokens[at - depth], depth}, draws);
    const uint64_t key = chain.noise == kKeyed ? chains.keys[at] : key_of(chains.seed, at);
    float* q = chain.q_row < 0 ? nullptr : chains.q + (chain.q_row + depth) * size_t(chains.vocabulary);
    const Gate gate = gate_of(chains, index, at);
    chains.tokens[at] = draw_chained(chains, chain, row, vocabulary, ids, key, q, gate, draws);
    if (gate.least) chains.lengths[index] = depth + (chains.tokens[at] != kNoToken);
  });
}

// A pass over one new token of each chain that grows.
struct Feed {
  std::vector<int64_t> tokens;
  std::vector<Query> queries;
  std::vector<int32_t> pick;
  std::vector<float> given, made;  // hidden states that a head takes, and those that it gives

  // The chains' tokens at `depth - 1`.
  void fill(const Chains& chains, std::vector<Growing>& growing, int depth, size_t width) {
    tokens.clear(), queries.clear(), pick.clear(), given.clear();
    for (Growing& one : growing) {
      const Chain& chain = chains.chain[one.chain];
      tokens.push_back(chains.tokens[one.chain * size_t(chains.longest) + depth - 1]);
      queries.push_back({chain.blocks, chain.start + depth - 1, 0, 1, -1});
      if (chains.states)
        given.insert(given.end(), &made[one.row * width], &made[one.row * width] + width);
      one.row = int(pick.size());
      pick.push_back(one.row);
    }
  }

  Step step(const Model& model, const Chains& chains, float* logits) {
    Step step{};
    step.rows = step.queries = step.picked = int(tokens.size());
    step.tokens = tokens.data();
    step.query = queries.data();
    step.blocks = chains.blocks;
    step.pick = pick.data();
    step.logits = logits;
    if (!chains.states) return step;
    step.states = given.data();
    step.fused = 1;
    step.taps = !model.entry.norm_output;
    step.tap = &model.layers;
    (model.entry.norm_output ? step.normed : step.tapped) = made.data();
    return step;
  }
};

// first: the pass that the first tokens are drawn behind; null: from the logits that are given.
template <class W>
void grow(const Model& model, const Chains& chains, const Step* first, Space& space) {
  Feed feed;
  std::vector<Growing> growing;
  const size_t width = model.hidden;
  std::vector<int32_t> places;
  for (int i = 0; i < chains.count; ++i) growing.push_back({i, i});
  if (chains.ids && std::any_of(chains.chain, chains.chain + chains.count, edits))
    places = places_of(chains.ids, model.head.rows, chains.vocabulary);
  if (chains.states) feed.made.assign(chains.states, chains.states + chains.count * width);
  space.draws.resize(model.threads);
  space.team.fit(model.threads);
  const auto draw_own = [&](int depth, const float* logits) {
    draw_all(chains, growing, depth, logits, model.head.rows, chains.ids,
             places.empty() ? nullptr : places.data(), space);
  };
  if (first) {
    forward<W>(model, *first, space, [&] { draw_own(0, first->logits); });
  } else {
#pragma omp parallel num_threads(model.threads)
    draw_all(chains, growing, 0, chains.logits, chains.vocabulary, nullptr, nullptr, space);
  }
  for (int depth = 1; depth < chains.longest; ++depth) {
    const auto ends = [&](Growing one) {
      const bool ended = chains.least && chains.lengths[one.chain] < depth;
      return ended || chains.chain[one.chain].length <= depth;
    };
    growing.erase(std::remove_if(growing.begin(), growing.end(), ends), growing.end());
    if (growing.empty()) return;
    feed.fill(chains, growing, depth, width);
    space.logits.resize(growing.size() * model.head.rows);
    const Step step = feed.step(model, chains, space.logits.data());
    forward<W>(model, step, space, [&] { draw_own(depth, step.logits); });
  }
}

}  // namespace
