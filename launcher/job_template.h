// Job templates: sbatch scripts and Kubernetes manifests as Mustache text, part of the program and
// replaceable by files of the same name in a folder of the user's (--templates_dir). Nothing is
// left out silently: a tag that no value belongs to, or one whose value is missing, is an error
// with its place. Text is put in as it is ({{x}} like {{{x}}}); values are quoted for where they
// stand by who makes them.
//
// Of Mustache: {{x}}, {{{x}}}, {{&x}}, {{x.y}}, {{.}}, {{#x}}, {{^x}}, {{/x}} and {{! comments }}.
// A line on which only sections begin or end, or comments stand, leaves no line. Partials and other
// delimiters are refused. (Rendered here and not by a library: those of Mustache leave out silently
// what they do not know, as its specification wants, and the one that Debian has also leaves an
// empty line for every section that is off.)
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

// Those of templates/, part of the program (launcher/job_templates.cmake).
const std::vector<JobTemplate>& built_in_job_templates();
std::vector<std::string> job_template_names();  // the names of these
// `folder`: the user's, "" = none; what it does not have comes from the program. Throws Error
// (Exit::config) template.missing for a name that neither has, and for a folder in which no
// template lies.
JobTemplate load_job_template(const std::string& name, const std::string& folder);

// `values`: strings, numbers, truths (sections {{#x}}..{{/x}}, {{^x}}..{{/x}}) and lists of objects
// or strings ({{.}}). A section is off for null, false, an empty text, list or object; it hides
// what is in it from the check for missing values when it is off. Throws Error (Exit::config) with
// every fault and its place: template.unknown_tag (with the nearest name), template.unfilled (null
// or absent value), template.syntax.
std::string render_job_template(const JobTemplate& job_template,
                                const nlohmann::ordered_json& values);

}  // namespace mtl
