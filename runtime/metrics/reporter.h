// What a run reports. In the worker, rank 0 owns a Reporter: it appends metrics.jsonl and
// events.jsonl, writes TensorBoard's files, keeps status.json, and sends every record as one JSON
// line to whoever started it (the descriptor in MTL_PROGRESS_FD), or, when nobody listens, prints
// plain lines to stderr. In `mtl launch`, a ProgressView turns the same records into a redrawn
// status line on a terminal, or plain `key=value` lines when piped.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"

namespace mtl {

// What the GPUs of all ranks do, as their driver says; 0 = it does not say.
struct GpusReport {
  double power_w = 0;        // of all
  int64_t memory_bytes = 0;  // in use on the fullest one, by whomever
  int clock_mhz = 0;         // of the multiprocessors, on the slowest one
  int slowest_rank = 0;
  int temperature_c = 0;  // of the hottest one
  // Why GPUs did not run at their full clock since the last report ("power limit"), and how many.
  std::map<std::string, int> slowed;
};

struct StepReport {
  int64_t step = 0;   // 1-based: the step that was just done
  int64_t steps = 0;  // of the whole run
  double loss = 0;    // mean over the global batch's tokens that count
  double lr = 0;
  double grad_norm = 0;  // before clipping
  double tokens_per_s = 0;
  double learned_share = 1;  // of these tokens, those that count in the loss
  double step_time_s = 0;
  double mfu = 0;            // model FLOP/s over those of the yardstick
  double mfu_of = 0;         // FLOP/s of all ranks in the compute type
  bool mfu_of_peak = false;  // the GPUs' dense peak by the catalogue; else measured (a matmul)
  int64_t memory_bytes = 0;  // of all ranks
  double eta_s = 0;
  bool step_skipped = false;  // this step changed no weight
  int64_t skipped = 0;        // such steps of the whole run, this one included
  double loss_scale = 0;      // that this step ran with (fp16); 0 = none
  // Of a mixture of experts: mean over its layers of the load-balancing loss (1 = balanced) and the
  // z-loss of its routers; 0 = there are none.
  double moe_aux_loss = 0, moe_z_loss = 0;
  // Where ranks divide the experts: turns that a micro-batch took through those of a layer, the
  // mean (1 = all rows had room at once); 0 = they do not.
  double moe_turns = 0;
  std::optional<GpusReport> gpus;  // of steps that are logged, where there are any
};

// A rank that the others wait for, or one that keeps up again.
struct StragglerReport {
  int rank = 0;
  std::string host, device;
  std::string phase;     // "forward and backward": where most of the time goes
  double factor = 1;     // of its peers' time
  double job_speed = 1;  // about, of what the job would have if the rank kept up
  bool recovered = false;
};

// The loss on one of the validation sets.
struct SetLoss {
  std::string name;
  double loss = 0;
};

// What the model has written behind the prompts of a run.
struct GeneratedReport {
  struct Text {
    std::string prompt, text;
    int64_t tokens = 0;
    std::string ended;  // why it has no more of them; "" = it has all
  };
  int64_t step = 0;
  double seconds = 0;  // that it took, all together
  std::vector<Text> texts;
};

struct ReporterOptions {
  std::filesystem::path run_dir;
  int progress_fd = -1;     // -1 = print plain lines to stderr
  int64_t steps = 0;        // of the whole run
  int64_t resume_step = 0;  // lines of later steps are dropped of metrics.jsonl and
                            // generated.jsonl: they will be written again
  // So are the losses and texts of that step itself, where its evaluation is still to be done:
  // ranks since then may have done it, and ended before a checkpoint said so.
  bool evaluates_again = false, generates_again = false;
  std::filesystem::path checkpoint = {};  // of that step
  int64_t log_every = 10;
  bool generates = false;    // there will be a generated.jsonl
  bool tensorboard = false;  // tb/ has what metrics.jsonl has
  std::function<std::chrono::system_clock::time_point()> now = std::chrono::system_clock::now;
};

// A report that cannot be written (a full disk) never ends a run: it is said once, and the run goes
// on. Only the constructor throws, when the files of the run cannot be opened at all. The process
// must ignore SIGPIPE, since whoever reads the progress may die first.
class Reporter {
 public:
  explicit Reporter(ReporterOptions options);
  ~Reporter();
  // The start block: at most a dozen lines, printed before the first step.
  void start(const std::vector<std::string>& lines);
  // Every step; metrics.jsonl and plain output get those of `log_every`, the first and the last,
  // and every skipped one.
  void step(const StepReport& report);
  // `sets`: the losses of the sets that valid_loss is the mean of, if they have names.
  void eval(int64_t step, double valid_loss, const std::vector<SetLoss>& sets = {});
  // A line of generated.jsonl for each text.
  void generated(const GeneratedReport& report);
  void checkpoint(int64_t step, const std::filesystem::path& path);
  // Something that a person should know of and that does not end the run, as the event `name` with
  // code and reason; `shown`: also where the progress is seen.
  void warning(const std::string& name, int64_t step, const Diagnostic& diagnostic,
               bool shown = true);
  // The same as the event "straggler" or "straggler_recovered", with the numbers; status.json has
  // the ranks that are slow.
  void straggler(int64_t step, const StragglerReport& report, const Diagnostic& diagnostic,
                 bool shown = true);
  // state: "done" | "stopped" | "failed". A Reporter destroyed after start() without finish()
  // records "failed".
  void finish(const std::string& state, const std::vector<std::string>& lines);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Before workers start, for the first time or again: what status.json has said of those before is
// over (speed, time left, slow ranks, how they ended). What is on the disk stays: the newest
// checkpoint, whose step the run goes on from.
void record_start(const std::filesystem::path& run_dir);

// For whoever watched the workers die: events.jsonl gets "failed" with `reason`, and status.json no
// longer says that the run is running.
void record_failure(const std::filesystem::path& run_dir, int exit_code, const std::string& reason);
// The same of workers that ended on request and have not said so: before their first step they end
// at once (worker_signals.h).
void record_stop(const std::filesystem::path& run_dir);

struct ViewOptions {
  std::FILE* out = stderr;
  bool terminal = false;  // redraw one line; else plain lines
  bool color = false;
  bool utf8 = false;
  int columns = 80;  // 0 = the terminal's, asked at each redraw
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
};

class ProgressView {
 public:
  explicit ProgressView(ViewOptions options);
  ~ProgressView();
  // One JSON record as a Reporter sent it. Unknown kinds are ignored, a broken line is shown as it
  // is.
  void record(const std::string& json_line);
  // Text from elsewhere (a worker's output): the status line is cleared, the text printed, the line
  // drawn again.
  void text(const std::string& line);
  void close();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mtl
