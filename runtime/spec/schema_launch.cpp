// How a run is started: the section that the launcher reads. Its names under `slurm` and
// `kubernetes` are those of the launcher's flags (--slurm_partition), which a test compares; what
// they may say is the launcher's to check, for default_config.yaml, flags and variables as well.
#include <algorithm>

#include "runtime/spec/schema_sections.h"

namespace mtl::spec {

namespace {

using Texts = std::map<std::string, std::vector<std::string>>;

template <size_t N>
struct Name {
  char text[N] = {};
  consteval Name(const char (&given)[N]) { std::copy_n(given, N, text); }
};

template <Texts TrainSpec::Launch::*kTexts, Name kName>
Row passed(const char* key, const char* doc, bool list = false) {
  return {.key = key,
          .field = [](TrainSpec& s) -> Field {
            return Passed{&(s.launch.*kTexts), kName.text};
          },
          .doc = doc,
          .is_list = list};
}

}  // namespace

Section launch_section() {
  return {
      .docs =
          {
              {"launch",
               "How the ranks are started. Where they run stands in default_config.yaml."},
              {"launch.slurm", "What a job asks SLURM for."},
              {"launch.kubernetes", "What a job for Kubernetes is: see docs/how-to/kubernetes.md."},
          },
      .rows =
          {
              {.key = "launch.spawn",
               .field = [](TrainSpec& s) -> Field { return &s.launch.spawn; },
               .doc = "What the ranks of one machine are.",
               .choices = {{"processes", "one process each"},
                           {"threads", "threads of one process, for tests and debuggers"}},
               .refused = {{"ddp", "processes", ""},
                           {"ddp_spawn", "threads", ""},
                           {"fork", "processes", ""}},
               .known_as = {"strategy", "start_method"}},
              {.key = "launch.via",
               .field = [](TrainSpec& s) -> Field { return &s.launch.via; },
               .doc = "Who starts them.",
               .choices = {{"auto",
                            "ssh where hosts are given, srun inside a SLURM job, else this "
                            "machine"},
                           {"local", "this machine"},
                           {"ssh", "agents on the hosts, by ssh"},
                           {"slurm", "a job is submitted; inside one, srun"},
                           {"kubernetes", "manifests of a job are written"}},
               .refused = {{"sbatch", "slurm", ""},
                           {"srun", "slurm", ""},
                           {"k8s", "kubernetes", ""}}},
              passed<&TrainSpec::Launch::slurm, "partition">(
                  "launch.slurm.partition",
                  "Partition of the job; several with commas, the first that can start it."),
              passed<&TrainSpec::Launch::slurm, "account">("launch.slurm.account",
                                                           "Account that the job is charged to."),
              passed<&TrainSpec::Launch::slurm, "qos">("launch.slurm.qos", "Quality of service."),
              passed<&TrainSpec::Launch::slurm, "time">(
                  "launch.slurm.time",
                  "Time limit: 90 (minutes), 12:00:00 or 2-00:00:00; not given: the partition's."),
              passed<&TrainSpec::Launch::slurm, "gpus_per_node">(
                  "launch.slurm.gpus_per_node",
                  "GPUs of each node; not given: as many as `--nproc_per_node`, none with "
                  "`--cpu`."),
              passed<&TrainSpec::Launch::slurm, "gpu_type">(
                  "launch.slurm.gpu_type", "Type of these GPUs, as the site calls it: a100."),
              passed<&TrainSpec::Launch::slurm, "gres">(
                  "launch.slurm.gres",
                  "In place of `--gpus-per-node`, for sites that want it: gpu:a100:8."),
              passed<&TrainSpec::Launch::slurm, "cpus_per_task">(
                  "launch.slurm.cpus_per_task", "CPUs of each node: its ranks share them."),
              passed<&TrainSpec::Launch::slurm, "mem">("launch.slurm.mem",
                                                       "Memory of each node: 64G; 0 = all of it."),
              passed<&TrainSpec::Launch::slurm, "constraint">("launch.slurm.constraint",
                                                              "Features that the nodes must have."),
              passed<&TrainSpec::Launch::slurm, "exclude">("launch.slurm.exclude",
                                                           "Nodes that must not be used."),
              passed<&TrainSpec::Launch::slurm, "nodelist">("launch.slurm.nodelist",
                                                            "Nodes that must be used."),
              passed<&TrainSpec::Launch::slurm, "exclusive">(
                  "launch.slurm.exclusive", "Whether the nodes are for this job alone."),
              passed<&TrainSpec::Launch::slurm, "reservation">("launch.slurm.reservation",
                                                               "Reservation to use."),
              passed<&TrainSpec::Launch::slurm, "array">(
                  "launch.slurm.array",
                  "An array of jobs: 0-15%4; `%a` in key=value settings is the number of each."),
              passed<&TrainSpec::Launch::slurm, "dependency">("launch.slurm.dependency",
                                                              "Start after others: afterok:1234."),
              passed<&TrainSpec::Launch::slurm, "job_name">(
                  "launch.slurm.job_name",
                  "Name of the job; not given: run.name, or the program's."),
              passed<&TrainSpec::Launch::slurm, "signal_s">(
                  "launch.slurm.signal_s",
                  "So long before the time limit the run stops with a checkpoint; 0 = it does not; "
                  "not given: 180."),
              passed<&TrainSpec::Launch::slurm, "chain">(
                  "launch.slurm.chain",
                  "What follows when the job stops with a complete checkpoint because its time is "
                  "over or it is preempted: the same job again, a next job after it, or nothing; "
                  "not given: requeue."),
              passed<&TrainSpec::Launch::slurm, "srun">(
                  "launch.slurm.srun",
                  "Also for srun, which starts an agent on every node: `--network=...`.", true),
              passed<&TrainSpec::Launch::slurm, "container">(
                  "launch.slurm.container",
                  "Container image that the ranks run in; it has mtl, or gets it by "
                  "container_mounts."),
              passed<&TrainSpec::Launch::slurm, "container_runtime">(
                  "launch.slurm.container_runtime", "What runs the container; not given: pyxis."),
              passed<&TrainSpec::Launch::slurm, "container_mounts">(
                  "launch.slurm.container_mounts", "Folders of the node inside the container.",
                  true),
              passed<&TrainSpec::Launch::slurm, "modules">(
                  "launch.slurm.modules", "Environment module to load first.", true),
              passed<&TrainSpec::Launch::slurm, "setup">(
                  "launch.slurm.setup", "Shell command to run before the launch.", true),
              passed<&TrainSpec::Launch::slurm, "mail_user">("launch.slurm.mail_user",
                                                             "Who gets mail about the job."),
              passed<&TrainSpec::Launch::slurm, "mail_type">(
                  "launch.slurm.mail_type", "About what: BEGIN, END, FAIL, ALL ..."),
              passed<&TrainSpec::Launch::slurm, "comment">(
                  "launch.slurm.comment", "Remark on the job, for people and accounting."),
              passed<&TrainSpec::Launch::slurm, "output">(
                  "launch.slurm.output", "Folder of the job's log; not given: that of its script."),
              passed<&TrainSpec::Launch::slurm, "extra">(
                  "launch.slurm.extra", "Further option of sbatch: `--switches=1`.", true),
              passed<&TrainSpec::Launch::slurm, "wait">(
                  "launch.slurm.wait", "Follow the job until it ends, with its exit code."),
              passed<&TrainSpec::Launch::kubernetes, "kind">(
                  "launch.kubernetes.kind",
                  "What runs the pods: indexed-job, jobset, pytorchjob or trainjob; not given: "
                  "indexed-job, which needs nothing else in the cluster."),
              passed<&TrainSpec::Launch::kubernetes, "image">(
                  "launch.kubernetes.image", "Container image with mtl (or the program) in it."),
              passed<&TrainSpec::Launch::kubernetes, "name">(
                  "launch.kubernetes.name",
                  "Of the job and all that belongs to it; not given: run.name, or the program's."),
              passed<&TrainSpec::Launch::kubernetes, "namespace">(
                  "launch.kubernetes.namespace", "Namespace; not given: kubectl's own."),
              passed<&TrainSpec::Launch::kubernetes, "gpus">(
                  "launch.kubernetes.gpus",
                  "GPUs of a pod; not given: one for each rank, none with `--cpu`."),
              passed<&TrainSpec::Launch::kubernetes, "gpu_resource">(
                  "launch.kubernetes.gpu_resource",
                  "What the cluster calls its GPUs; not given: nvidia.com/gpu."),
              passed<&TrainSpec::Launch::kubernetes, "cpus">("launch.kubernetes.cpus",
                                                             "Cores of a pod: 16."),
              passed<&TrainSpec::Launch::kubernetes, "memory">("launch.kubernetes.memory",
                                                               "Memory of a pod: 64Gi."),
              passed<&TrainSpec::Launch::kubernetes, "shm">(
                  "launch.kubernetes.shm", "Limit of /dev/shm, which counts as memory of the pod."),
              passed<&TrainSpec::Launch::kubernetes, "checkpoint_pvc">(
                  "launch.kubernetes.checkpoint_pvc",
                  "Volume that all pods can write, as CLAIM or CLAIM:PATH; pods work there."),
              passed<&TrainSpec::Launch::kubernetes, "pvc">(
                  "launch.kubernetes.pvc",
                  "Another volume, of data for instance: CLAIM:PATH or CLAIM:PATH:ro.", true),
              passed<&TrainSpec::Launch::kubernetes, "node_selector">(
                  "launch.kubernetes.node_selector", "Only nodes with this label: LABEL=VALUE.",
                  true),
              passed<&TrainSpec::Launch::kubernetes, "toleration">(
                  "launch.kubernetes.toleration",
                  "Also nodes with this taint: KEY, KEY=VALUE or KEY=VALUE:EFFECT.", true),
              passed<&TrainSpec::Launch::kubernetes, "one_per_host">(
                  "launch.kubernetes.one_per_host", "Whether each pod has a node of its own."),
              passed<&TrainSpec::Launch::kubernetes, "user">(
                  "launch.kubernetes.user",
                  "Who the pods run as, by number: UID or UID:GID; not given: the image's own."),
              passed<&TrainSpec::Launch::kubernetes, "service_account">(
                  "launch.kubernetes.service_account", "Whose rights the pods have."),
              passed<&TrainSpec::Launch::kubernetes, "image_pull_secret">(
                  "launch.kubernetes.image_pull_secret", "For a registry that asks for a password.",
                  true),
              passed<&TrainSpec::Launch::kubernetes, "env_secret">(
                  "launch.kubernetes.env_secret",
                  "A variable of the pods from a secret of the cluster: VARIABLE=SECRET:KEY.",
                  true),
              passed<&TrainSpec::Launch::kubernetes, "queue">(
                  "launch.kubernetes.queue",
                  "Kueue's local queue, which starts the job as a whole."),
              passed<&TrainSpec::Launch::kubernetes, "priority_class">(
                  "launch.kubernetes.priority_class", "Priority class of the pods."),
              passed<&TrainSpec::Launch::kubernetes, "grace">(
                  "launch.kubernetes.grace",
                  "From TERM to KILL of a pod: time to finish a step and to write a checkpoint; "
                  "not given: 5m."),
              passed<&TrainSpec::Launch::kubernetes, "max_restarts">(
                  "launch.kubernetes.max_restarts",
                  "How often a job that fails starts again; not given: 10."),
              passed<&TrainSpec::Launch::kubernetes, "apply">(
                  "launch.kubernetes.apply",
                  "Give the manifest to kubectl apply instead of printing it."),
          },
      .unavailable =
          {
              {"launch.kind", "write `launch.via`"},
              {"launch.nodes", "where to run stands in default_config.yaml, see `mtl config`"},
              {"launch.gpus_per_node",
               "where to run stands in default_config.yaml, see `mtl config`"},
          },
  };
}

}  // namespace mtl::spec
