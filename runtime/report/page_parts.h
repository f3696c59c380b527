// The parts of a report's page that are about one run: what happened, plan, memory, settings. For
// the files of this room only; each appends HTML.
#pragma once

#include <string>

#include "runtime/report/run_record.h"

namespace mtl {

// What the model wrote behind each prompt, by step.
void write_generated(std::string& html, const RunRecord& run);
void write_events(std::string& html, const RunRecord& run);
// With the memory of a rank, and the environment.
void write_plan(std::string& html, const RunRecord& run);
void write_settings(std::string& html, const RunRecord& run);

// A time as people read it: "2026-11-21 01:42:10 UTC".
std::string clock_words(const std::string& time);

// Style and script of the page.
extern const char* const kPageStyle;
extern const char* const kPageScript;

}  // namespace mtl
