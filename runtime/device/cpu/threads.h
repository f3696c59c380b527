// The one thread pool of a rank is OpenMP's: oneDNN uses it too, and a second pool beside it would
// halve the speed.
#pragma once

namespace mtl {

// Sets the number of threads of the calling thread's parallel regions: `requested`, or with 0
// OMP_NUM_THREADS, else the cores that this process may run on. Returns the number.
int use_threads(int requested);

// Aligned memory that is reused from call to call and only grows; its content does not survive
// growing.
class Workspace {
 public:
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace();
  void* get(unsigned long bytes);  // 4096-byte aligned

 private:
  void* memory_ = nullptr;
  unsigned long bytes_ = 0;
};

}  // namespace mtl
