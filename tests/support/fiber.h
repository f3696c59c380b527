// Stacks that run in turn on a thread, for gpu_on_host.cpp. AddressSanitizer and ThreadSanitizer
// are told of every switch. To be included once: it holds a function in assembler.
#pragma once

#include <cstddef>
#include <new>

#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

// Switching between fibers: thousands of times per block, so not by swapcontext, which asks the
// kernel for the signal mask twice each time. mtl_switch_fiber(from, to) saves what a function has
// to keep on the stack, leaves the stack's top in *from and goes on where `to` was left.
#if defined(__x86_64__)
extern "C" void mtl_switch_fiber(void** from, void* to);
asm(R"(
.text
.globl mtl_switch_fiber
.type mtl_switch_fiber, @function
mtl_switch_fiber:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size mtl_switch_fiber, .-mtl_switch_fiber
)");
#else
#include <ucontext.h>
#endif

namespace mtl::gpu_on_host {

// A place to go on at: a stack and what is on it.
class Context {
 public:
  // The one that runs.
  Context() {
#if defined(__SANITIZE_THREAD__)
    tsan_ = __tsan_get_current_fiber();
#endif
  }
  // One that will run `entry` on a stack of its own.
  explicit Context(void (*entry)()) {
    memory_ = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    mprotect(memory_, kGuardBytes, PROT_NONE);
    stack_ = static_cast<char*>(memory_) + kGuardBytes;
#if defined(__x86_64__)
    // As mtl_switch_fiber leaves a stack: six registers, then where to return to. Functions expect
    // the stack to be 8 off a multiple of 16.
    auto** top = reinterpret_cast<void**>(static_cast<char*>(stack_) + kStackBytes);
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    top_ = top;
#else
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack_;
    context_.uc_stack.ss_size = kStackBytes;
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
#endif
#if defined(__SANITIZE_THREAD__)
    tsan_ = __tsan_create_fiber(0);
#endif
  }
  ~Context() {
    if (memory_ == nullptr) return;
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack_, kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(tsan_);
#endif
    munmap(memory_, kGuardBytes + kStackBytes);
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Runs `next`; comes back when somebody runs this one.
  void switch_to(Context& next) {
    came_from = this;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&fake_stack_, next.stack_, next.stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(next.tsan_, 0);
#endif
#if defined(__x86_64__)
    mtl_switch_fiber(&top_, next.top_);
#else
    swapcontext(&context_, &next.context_);
#endif
    arrived();
  }
  // The first thing a context does that has been switched to.
  void arrived() {
#if defined(__SANITIZE_ADDRESS__)
    const void* bottom = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(fake_stack_, &bottom, &bytes);
    // So the stack of the context that had none of its own becomes known.
    came_from->stack_ = const_cast<void*>(bottom);
    came_from->stack_bytes_ = bytes;
#endif
  }

 private:
  inline static thread_local Context* came_from = nullptr;
  static constexpr size_t kStackBytes = size_t{128} << 10;
  static constexpr size_t kGuardBytes = size_t{64} << 10;
  void* memory_ = nullptr;
  void* stack_ = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  size_t stack_bytes_ = kStackBytes;
  void* fake_stack_ = nullptr;
#endif
#if defined(__SANITIZE_THREAD__)
  void* tsan_ = nullptr;
#endif
#if defined(__x86_64__)
  void* top_ = nullptr;
#else
  ucontext_t context_ = {};
#endif
};

}  // namespace mtl::gpu_on_host
