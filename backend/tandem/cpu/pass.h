// A dense decoder's forward pass on CPU cores: every weight is read once, and every key and value
// of a request once for all rows of its draft tree. Weights and the KV cache are float or bfloat16,
// sums are float. One parallel region from the tokens, and for a draft head the target's
// hidden states, to the logits.
//
// A row's result does not depend, to the last bit, on what is computed beside it: every sum has an
// order of its own, by columns or by positions in the text, whatever the rows, threads or trees. So
// a verified draft gives the very numbers that plain decoding gives.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cmath>

#include "attention.h"
#include "batch.h"
#include "matrices.h"
#include "rows.h"
#include "team.h"
#include "tiles.h"

namespace {

// `outputs` of x [rows, columns] by the transposed weight, and the bias; then all wait, unless there are no
// rows. next: the matrix that is multiplied behind this one, if any. (By tiles it was no faster to ask for
// that.)
void multiply(Team& team, const Matrix& matrix, const Inputs& x, int rows, const Outputs& outputs,
              const Matrix* next = nullptr) {
  if (matrix.bfloat && kTiles)
    multiply_by_tiles(team, matrix, x, rows, outputs);
  else if (matrix.lowest)
    multiply_eights(team, matrix, x, rows, outputs, next);
  else if (matrix.bfloat)
    multiply_as<Half>(team, matrix, static_cast<const Input<Half>*>(x.at()), rows, outputs, next);
  else
    multiply_as<float>(team, matrix, x.floats, rows, outputs, next);
}

// y [rows, matrix.rows] of them all.
void multiply(Team& team, const Matrix& matrix, const Inputs& x, int rows, float* y,
              const Matrix* next = nullptr) {
  multiply(team, matrix, x, rows, Outputs{matrix, y}, next);
}

// So many rows of x, where this layer's input is wanted.
void keep_taps(const Model& model, const Step& step, int layer, int rows, const float* x,
               Team& team) {
  const size_t width = model.hidden;
  for (int tap = 0; tap < step.taps; ++tap) {
    if (step.tap[tap] != layer) continue;
    team.each(rows, [&](int row) {
      std::copy_n(x + row * width, width, step.tapped + (row * size_t(step.taps) + tap) * width);
    });
  }
}

// The last norm of so many rows of x, where it is wanted.
void keep_normed(const Model& model, const Step& step, int rows, const float* x, Team& team) {
  const size_t width = model.hidden;
  if (!step.normed) return;
  team.each(rows, [&](int row) {
    normalize(x + row * width, model.final_norm, model.hidden, model.epsilon, step.normed + row * width);
  });
}

// x += from, and the norm of the sum, row by row.
void add_and_normalize(Team& team, const Model& model, int rows, const float* from,
                       const float* scale, float* x, OwnInputs& normed) {
  const size_t width = model.hidden;
  team.each(rows, [&](int row) {
    float* own = x + row * width;
    for (size_t i = 0; i < width; ++i) own[i] += from[row * width + i];
    normalize(own, scale, model.hidden, model.epsilon, normed, row);
  });
}

// A layer's keys and values, and the attention of some rows.
template <class W>
void attend_all(const Model& model, const Layer& layer, const Inputs& input, const Step& step,
                const Run& run, const std::vector<Task>& tasks, Space& space) {
  const int width = (model.heads + 2 * model.kv_heads) * model.head_dim;
  const int queries = model.heads / model.kv_heads * model.head_dim;  // numbers of a row and KV head
  float* qkv = space.qkv.data();
  multiply(space.team, layer.qkv, input, step.rows, qkv, &layer.out);
  // By KV heads, as far as they go round: threads that write into the same groups wait for each other.
  const int parts = up(step.rows, run.part);
  space.team.each(model.kv_heads * parts, [&](int part) {
    const int begin = part % parts * run.part, end = std::min(begin + run.part, step.rows);
    for (int row = begin, next; row < end; row = next) {
      const int slot = run.slot[row];
      for (next = row + 1; next < end && run.slot[next] == slot + next - row &&
                           run.slot[next] % kBlock;)
        ++next;
      uint16_t* rounded = space.queries.data() + (size_t(part / parts) * step.rows + row) * queries;
      prepare<W>(model, layer, &run.position[row], slot, next - row, part / parts,
                 qkv + size_t(row) * width, rounded, space.broken[part].row + row - begin);
    }
  });
  space.team.each_uneven(int(tasks.size()), [&](int task) {
    attend<W>(model, layer, step, run, tasks[task], space);
  });
}

// What follows a layer's attention, of so many rows of x and of what it has mixed; the norm behind the
// layer is left in space.normed. Barriers stand where all rows or all columns of what was made are needed.
void transform(const Model& model, int index, int rows, const Inputs& mixed, float* x, Space& space) {
  const Layer& layer = model.layer[index];
  const Layer* next = index + 1 < model.layers ? &layer + 1 : nullptr;
  float* delta = space.delta.data();
  Team& team = space.team;
  multiply(team, layer.out, mixed, rows, delta, &layer.gate_up);
  add_and_normalize(team, model, rows, delta, layer.post_norm, x, space.normed);
  multiply(team, layer.gate_up, space.normed, rows, Outputs{layer.gate_up, nullptr, &space.inner},
           &layer.down);
  multiply(team, layer.down, space.inner, rows, delta, next ? &next->qkv : &model.head);
  add_and_normalize(team, model, rows, delta, next ? next->input_norm : model.final_norm, x, space.normed);
}

// One layer of what is in space.x; input: what its attention reads of that.
template <class W>
void run_layer(const Model& model, int index, const Inputs& input, const Step& step, const Run& run,
               Space& space) {
  attend_all<W>(model, model.layer[index], input, step, run, run.tasks, space);
  transform(model, index, step.rows, space.mixed, space.x.data(), space);
}

// The last layer for the picked rows: of a prompt's others nothing but keys and values is of use.
template <class W>
void run_last_layer(const Model& model, const Inputs& input, const Step& step, const Run& run,
                    Space& space) {
  const int last = model.layers - 1;
  const size_t width = model.hidden;
  attend_all<W>(model, model.layer[last], input, step, run, run.last_tasks, space);
  space.team.each(step.picked, [&](int i) {
    const size_t row = step.pick[i];
    std::copy_n(&space.x[row * width], width, &space.picked_x[i * width]);
    space.picked.copy_row(i, space.mixed, row);
  });
  float* x = space.picked_x.data();
  transform(model, last, step.picked, space.picked, x, space);
  keep_taps(model, step, model.layers, step.picked, x, space.team);
  keep_normed(model, step, step.picked, x, space.team);
}

void look_up(const Matrix& table, int64_t token, float* to) {
  const size_t from = token * size_t(table.columns);
  table.bfloat ? widen(static_cast<const uint16_t*>(table.weight) + from, table.columns, to)
               : widen(static_cast<const float*>(table.weight) + from, table.columns, to);
}

// The tokens' embeddings, and their norm.
void enter(const Model& model, const Step& step, Space& space) {
  const size_t width = model.hidden;
  space.team.each(step.rows, [&](int row) {
    float* x = &space.x[row * width];
    look_up(model.embedding, step.tokens[row], x);
    normalize(x, model.layer[0].input_norm, model.hidden, model.epsilon, space.normed, row);
  });
}

// One hidden state of several: what a draft head takes of the target's.
const float* fuse(const Model& model, const Step& step, Space& space) {
  const Entry& entry = model.entry;
  const int width = entry.fuse.columns, part = width / entry.fuse_parts;
  space.team.each(step.rows, [&](int row) {
    const float* states = step.states + size_t(row) * width;
    for (int at = 0; at < width; at += part)
      normalize(states + at, entry.fuse_norm ? entry.fuse_norm + at : nullptr, part, model.epsilon,
                space.wide, row, at);
  });
  multiply(space.team, entry.fuse, space.wide, step.rows, space.fused.data());
  return space.fused.data();
}

// The embeddings of a draft head's tokens, joined to hidden states.
void enter_head(const Model& model, const Step& step, const Run& run, Space& space) {
  const Entry& entry = model.entry;
  const float* states = step.fused ? step.states : fuse(model, step, space);
  const int width = model.hidden;
  space.team.each(step.rows, [&](int row) {
    float* x = &space.x[size_t(row) * width];
    look_up(model.embedding, step.tokens[row], x);
    if (entry.blind_start && run.position[row] == 0) std::fill_n(x, width, 0.0f);
    normalize(x, entry.token_norm, width, model.epsilon, space.pair, row, entry.hidden_first ? width : 0);
    const float* state = states + size_t(row) * width;
    normalize(state, entry.hidden_norm, width, model.epsilon, x);
    space.pair.put_row(row, entry.hidden_first ? 0 : width, x, width);
    if (!entry.normed_residual && !entry.project.weight) std::copy_n(state, width, x);
  });
  if (!entry.project.weight) return;
  multiply(space.team, entry.project, space.pair, step.rows, space.x.data());
  space.team.each(step.rows, [&](int row) {
    normalize(&space.x[size_t(row) * width], model.layer[0].input_norm, width, model.epsilon,
              space.normed, row);
  });
}

// What is wanted of all rows behind the last layer, and the picked ones side by side.
void pick(const Model& model, const Step& step, Space& space) {
  keep_taps(model, step, model.layers, step.rows, space.x.data(), space.team);
  keep_normed(model, step, step.rows, space.x.data(), space.team);
  space.team.each(step.picked, [&](int i) { space.picked.copy_row(i, space.normed, step.pick[i]); });
}

// The logits of the picked rows, which lie side by side, and the best of each.
void finish(const Model& model, const Step& step, const Inputs& picked, Space& space) {
  multiply(space.team, model.head, picked, step.picked, step.logits);
  if (!step.best) return;
  space.team.each(step.picked, [&](int i) {
    step.best[i] = best_of(step.logits + i * size_t(model.head.rows), model.head.rows);
  });
}

// All that one thread of a pass does.
template <class W>
void run_all(const Model& model, const Step& step, const Run& run, Space& space) {
  step.states ? enter_head(model, step, run, space) : enter(model, step, space);
  const bool pairs = step.states && !model.entry.project.weight;  // they are what is read first
  for (int index = 0; index < model.layers; ++index) {
    const Inputs& input = index == 0 && pairs ? space.pair : space.normed;
    keep_taps(model, step, index, step.rows, space.x.data(), space.team);
    run.picks && index + 1 == model.layers ? run_last_layer<W>(model, input, step, run, space)
                                           : run_layer<W>(model, index, input, step, run, space);
  }
  if (!run.picks) pick(model, step, space);
  finish(model, step, run.picks ? space.normed : space.picked, space);
}

// A pass; `after` runs in the same parallel region.
template <class W, class After>
void forward(const Model& model, const Step& step, Space& space, After after) {
  const Run run = plan(model, step);
  space.fit(model, step, run, false);
#pragma omp parallel num_threads(model.threads)
  {
    run_all<W>(model, step, run, space);
    after();
  }
}

// A pass that the first thread comes to late: others begin it, and meanwhile this one does something else.
template <class W, class Meanwhile>
void forward_beside(const Model& model, const Step& step, Space& space, Meanwhile meanwhile) {
  const Run run = plan(model, step);
  space.fit(model, step, run, true);
#pragma omp parallel num_threads(model.threads)
  {
    const bool first = omp_get_thread_num() == 0;
    if (first) meanwhile();
    if (!first || space.team.join()) run_all<W>(model, step, run, space);
    if (!first) space.team.leave();
  }
}

}  // namespace
