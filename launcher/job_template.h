// Job templates: sbatch scripts and Kubernetes manifests as Mustache text, part of the program and
// replaceable by files of the same name in a folder of the user's (--templates_dir). Nothing is
// left out silently: a tag that no value belongs to, or one whose value is missing, is an error
// with its place. Text is put in as it is ({{x}} like {{{x}}}); values are quoted for where they
// stand by who makes them.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace mtl {

struct JobTemplate {
  std::string name;  // "slurm/job.sbatch"
  std::string path;  // of the user's file; "" = the program's own
  std::string text;
};

// The names of all that are part of the program.
std::vector<std::string> job_template_names();
// `folder`: the user's, "" = none; what it does not have comes from the program. Throws Error
// (Exit::configuration) template.missing for a name that neither has.
JobTemplate load_job_template(const std::string& name, const std::string& folder);

// `values`: strings, numbers, truths (sections {{#x}}..{{/x}}, {{^x}}..{{/x}}) and lists of objects
// or strings ({{.}}). A section hides what is in it from the check for missing values when it is
// off. Throws Error (Exit::configuration) with every fault and its place: template.unknown_tag
// (with the nearest name), template.unfilled (null or absent value), template.syntax.
std::string render_job_template(const JobTemplate& job_template,
                                const nlohmann::ordered_json& values);

}  // namespace mtl
