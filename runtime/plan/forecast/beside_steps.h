// What a run does beside its steps, that training waits for: evaluations, the texts that the model
// writes at them (train.eval.generate), checkpoints. How often follows from the settings; how long
// one takes, the run has measured or a forecast says (forecast.h).
#pragma once

#include <cstdint>
#include <vector>

namespace mtl {

struct BesideSteps {
  int64_t steps = 0;               // of the run
  int64_t eval_every = 0;          // steps from one evaluation to the next; 0 = only at the end
  std::vector<int64_t> eval_sets;  // sequences of each validation set that one takes; empty = none
  int64_t texts = 0, text_tokens = 0;  // written at each evaluation, and tokens of each, at most
  int64_t text_room = 0;               // tokens that the longest one has in its last pass
  int64_t save_every = 0;              // steps from one checkpoint to the next; 0 = only at the end
  int64_t save_every_s = 0;            // and seconds; 0 = no matter how long it takes
  bool async = true;                   // written while training goes on, but for the last one
  bool eval_before_save = false;       // checkpoints are compared by their loss on validation data

  bool evaluates() const { return !eval_sets.empty() || texts > 0; }
  int64_t eval_sequences() const;  // of an evaluation
};

// How often, from the end of step `from` (which is 1 or more) to the end of the run.
struct Occasions {
  int64_t evaluations = 0;
  int64_t saves = 0;  // but for the last one, which every run ends with
};
// `step_s`: of a step, for saves by time.
Occasions occasions(const BesideSteps& run, int64_t from, double step_s);

// Seconds that training waits for one of each.
struct BesideSeconds {
  double evaluation = 0, texts = 0;
  double save = 0, last_save = 0;
};

// Seconds of a run, or of what is left of one.
struct RunSeconds {
  double steps = 0, evaluations = 0, texts = 0, saves = 0;
  double total() const { return steps + evaluations + texts + saves; }
};
// `steps_s`: of the steps behind the end of step `from`.
RunSeconds seconds_of_run(const BesideSteps& run, int64_t from, double steps_s, double step_s,
                          const BesideSeconds& of_one);

// Of a run that has trained for `sequence_s` a sequence and evaluated nothing yet: the forward
// passes of an evaluation are that part of a step's (cost.h, forward_part), and so are those of
// texts, each token one over all of them, of `seq` tokens a sequence. Nothing is known of a disk.
BesideSeconds evaluations_by_steps(const BesideSteps& run, double sequence_s, int64_t seq,
                                   int64_t replicas, double forward_part = 1.0 / 3);

}  // namespace mtl
