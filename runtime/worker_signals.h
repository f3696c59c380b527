// What signals ask of a worker: INT, TERM and USR2 to stop, USR1 for a checkpoint.
//
// A scheduler may signal every process of a job: this one, and the launcher above it, which asks in
// its turn. That is one request, so those of the parent and of everybody else are counted apart,
// and only the second of somebody else is one that does not negotiate (a launcher that will not
// wait kills). USR2 is a scheduler's warning that time is nearly over: never more than a request.
#pragma once

#include <functional>

namespace mtl::signals {

// How a stop is obeyed. at_once: the process ends (Exit::requeue). Before the first step there is
// nothing to save, and what takes long then (data, a checkpoint that is read, ranks that wait for
// one that has died) is nothing that would ask. when_asked: by who calls stop_requested().
enum class Obey { at_once, when_asked };

// Once, before any other thread is made: they inherit what is blocked. Obeys at once.
void receive();
// From now on, and a stop that has been requested already.
void obey(Obey how);

// What else is done where the process ends at once, in whichever thread that is: for who has nobody
// above that would do it. Nothing, where it is empty.
void before_end(std::function<void()> what);

bool stop_requested();
// Whether a checkpoint has been asked for since the last call.
bool take_checkpoint();

}  // namespace mtl::signals
