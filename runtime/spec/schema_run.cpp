// The run itself: where it is kept, what it saves, logs and watches.
#include "runtime/spec/schema_sections.h"

namespace mtl::spec {

Section run_section() {
  return {
      .docs =
          {
              {"run", "The run and where it is kept."},
          },
      .rows =
          {
              {.key = "run.name",
               .field = [](TrainSpec& s) -> Field { return &s.run.name; },
               .doc = "Name of the run: the folder under `run.dir`.",
               .is_name = true,
               .known_as = {"run_name", "experiment_name", "wandb_exp_name"}},
              {.key = "run.dir",
               .field = [](TrainSpec& s) -> Field { return &s.run.dir; },
               .doc = "Where runs are kept: a run lives in `<run.dir>/<run.name>/<id>/`.",
               .is_path = true,
               .known_as = {"output_dir", "out_dir", "project_dir", "logging_dir"}},
          },
  };
}

Section checkpoint_section() {
  return {
      .docs =
          {
              {"checkpoint", "Checkpoints."},
              {"checkpoint.keep_best", "Checkpoints that stay because they are good."},
          },
      .rows =
          {
              {.key = "checkpoint.every",
               .field = [](TrainSpec& s) -> Field { return &s.checkpoint.every; },
               .doc = "Steps between checkpoints; 0: only at the end.",
               .suffixes = true,
               .min = 0,
               .max = kSteps,
               .known_as = {"save_interval", "save_steps", "checkpointing_steps", "save_every"}},
              {.key = "checkpoint.every_time",
               .field = [](TrainSpec& s) -> Field { return &s.checkpoint.every_time; },
               .doc = "Time after which a checkpoint is written in any case, since the one before; "
                      "0: steps alone count. The clock of rank 0 decides for all.",
               .is_duration = true,
               .min = 0,
               .max = 31 * 86400,
               .known_as = {"save_interval_minutes", "every_n_train_minutes",
                            "train_time_interval"}},
              {.key = "checkpoint.async",
               .field = [](TrainSpec& s) -> Field { return &s.checkpoint.async; },
               .doc =
                   "Whether training goes on while a checkpoint is written: each rank copies its "
                   "part first, and `mtl plan` shows the memory of the copy.",
               .known_as = {"async_save", "async_mode"}},
              {.key = "checkpoint.keep_last",
               .field = [](TrainSpec& s) -> Field { return &s.checkpoint.keep_last; },
               .doc = "Checkpoints that are kept; older ones are deleted. 0: all are kept.",
               .min = 0,
               .max = kMany,
               .known_as = {"save_total_limit", "total_limit", "keep"}},
              {.key = "checkpoint.keep_every",
               .field = [](TrainSpec& s) -> Field { return &s.checkpoint.keep_every; },
               .doc =
                   "Beside the last ones, checkpoints of every so manieth step stay for good; 0: "
                   "none.",
               .suffixes = true,
               .min = 0,
               .max = kSteps,
               .known_as = {"save_retain_interval", "keep_interval"}},
              {.key = "checkpoint.keep_best.k",
               .field = [](TrainSpec& s) -> Field { return &s.checkpoint.keep_best.k; },
               .doc =
                   "Beside the last ones, so many with the best metric stay, and the link `best` "
                   "points at the best of them; 0: none.",
               .min = 0,
               .max = kMany,
               .known_as = {"save_top_k", "best_n_checkpoints"}},
              {.key = "checkpoint.keep_best.metric",
               .field = [](TrainSpec& s) -> Field { return &s.checkpoint.keep_best.metric; },
               .doc = "What is compared.",
               .choices = {{"valid_loss",
                            "the loss on the validation text, measured at each "
                            "checkpoint"},
                           {"loss", "the training loss of the last step"}},
               .known_as = {"monitor", "metric_for_best_model"}},
              {.key = "checkpoint.keep_best.mode",
               .field = [](TrainSpec& s) -> Field { return &s.checkpoint.keep_best.mode; },
               .doc = "Which value is best.",
               .choices = {{"min", "the lowest"}, {"max", "the highest"}}},
              {.key = "checkpoint.resume",
               .field = [](TrainSpec& s) -> Field { return &s.checkpoint.resume; },
               .doc = "Whether a run goes on from its newest checkpoint.",
               .choices = {{"auto", "from the newest complete one, else from the start"},
                           {"never", "always from the start"},
                           {"must", "an error if there is none"}},
               .refused = {{"true", "auto", ""}, {"false", "never", ""}, {"latest", "auto", ""}},
               .known_as = {"resume_from_checkpoint", "load"}},
          },
      .unavailable =
          {
              {"checkpoint.dir", "checkpoints live in the run's folder, see `run.dir`"},
          },
  };
}

Section log_section() {
  return {
      .docs =
          {
              {"log", "Logging."},
          },
      .rows =
          {
              {.key = "log.every",
               .field = [](TrainSpec& s) -> Field { return &s.log.every; },
               .doc = "Steps between log lines.",
               .suffixes = true,
               .min = 1,
               .max = kSteps,
               .known_as = {"log_interval", "logging_steps", "log_every"}},
              {.key = "log.tensorboard",
               .field = [](TrainSpec& s) -> Field { return &s.log.tensorboard; },
               .doc = "Whether `tb/` in the run's folder has what is logged, for TensorBoard.",
               .known_as = {"tensorboard_dir", "report_to", "log_with", "logger"}},
          },
      .unavailable =
          {
              {"log.mfu", "it is always logged"},
              {"log.timers", "the step time is always logged"},
              {"log.jsonl", "metrics.jsonl is always written, in the run's folder"},
          },
  };
}

Section health_section() {
  return {
      .docs =
          {
              {"health", "What is watched while the run goes on."},
          },
      .rows =
          {
              {.key = "health.nan",
               .field = [](TrainSpec& s) -> Field { return &s.health.nan; },
               .doc = "What happens when the loss or a gradient is no finite number.",
               .choices = {{"stop", "the run stops and names the first bad tensor"},
                           {"skip",
                            "the step is left out, counted and reported; more than 20 in a row "
                            "stop the run"}},
               .refused = {{"true", "stop", ""}, {"ignore", "skip", ""}},
               .known_as = {"check_for_nan_in_loss_and_grad", "terminate_on_nan", "detect_anomaly",
                            "logging_nan_inf_filter"}},
              {.key = "health.spike_factor",
               .field = [](TrainSpec& s) -> Field { return &s.health.spike_factor; },
               .doc = "A warning where the loss or the gradient norm of a step lies above its mean "
                      "of about the last 100 steps by more than this many times its usual distance "
                      "from it; the run goes on. 0: none.",
               .min = 0,
               .max = 1e6,
               .known_as = {"check_for_spiky_loss", "loss_spike", "spike_threshold"}},
              {.key = "health.straggler_factor",
               .field = [](TrainSpec& s) -> Field { return &s.health.straggler_factor; },
               .doc = "A warning that names a rank which is itself busy, waiting for others left "
                      "out, for more than this many times as long as the ranks with the same work, "
                      "for about four seconds (16 steps at least); and one when it keeps up "
                      "again. More than 1; 0: none.",
               .min = 0,
               .max = 1e6,
               .known_as = {"straggler", "log_straggler", "straggler_minmax_count",
                            "disable_straggler_on_startup"}},
              {.key = "health.max_time",
               .field = [](TrainSpec& s) -> Field { return &s.health.max_time; },
               .doc = "Time after which the run stops with a checkpoint, as when it is asked to "
                      "(exit code 75: the same command goes on), counted from the start of "
                      "`mtl launch`, also if its ranks start again; 0: no limit. A step is not "
                      "begun if it, the evaluations that are due and a save that takes as long as "
                      "the longest of these ranks so far would end later; an evaluation that takes "
                      "longer than that is left, and done when the run goes on.",
               .is_duration = true,
               .min = 0,
               .max = 366 * 86400,
               .known_as = {"exit_duration_in_mins", "max_duration", "max_train_time"}},
          },
      .unavailable =
          {
              {"health.rerun", "steps are not repeated"},
              {"health.sigterm", "it is always a checkpoint, then the end"},
          },
  };
}

}  // namespace mtl::spec
