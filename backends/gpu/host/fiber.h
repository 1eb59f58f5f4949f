// A stack of its own for one device thread of the host adapter, and the switch to it and back.
#pragma once

#include <cstddef>
#include <functional>

#if !defined(__x86_64__) || defined(__SANITIZE_ADDRESS__)
#define SAMBA_FIBER_UCONTEXT 1
#include <ucontext.h>
#endif

namespace samba::gpu_host {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs `body` until it waits or ends. After its end the fiber takes the next body. The body throws nothing.
  void start(const std::function<void()>& body);
  void resume();
  bool finished() const { return body_ == nullptr; }

  void wait();  // called on the fiber: back to whoever started or resumed it

 private:
  static void entry(Fiber* fiber);
#if defined(SAMBA_FIBER_UCONTEXT)
  static void ucontext_entry(unsigned low, unsigned high);
  ucontext_t own_{};
  ucontext_t caller_{};
#else
  friend void fiber_main(Fiber* fiber);
  void* own_ = nullptr;
  void* caller_ = nullptr;
#endif
  void* stack_ = nullptr;
  const std::function<void()>* body_ = nullptr;
};

}  // namespace samba::gpu_host
