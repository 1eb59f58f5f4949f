#include "samba/backends/gpu/host/fiber.h"

#include <sys/mman.h>

#include <cstdint>

#include "samba/core/error.h"

namespace samba::gpu_host {

namespace {
constexpr std::size_t kStackBytes = std::size_t{128} << 10;
}

void Fiber::start(const std::function<void()>& body) {
  body_ = &body;
  resume();
}

// Bodies one after the other; it never returns.
void Fiber::entry(Fiber* fiber) {
  for (;;) {
    (*fiber->body_)();
    fiber->body_ = nullptr;
    fiber->wait();
  }
}

#if defined(SAMBA_FIBER_UCONTEXT)

void Fiber::ucontext_entry(unsigned low, unsigned high) {
  entry(reinterpret_cast<Fiber*>(static_cast<std::uintptr_t>(low) | static_cast<std::uintptr_t>(high) << 32));
}

void Fiber::resume() { swapcontext(&caller_, &own_); }
void Fiber::wait() { swapcontext(&own_, &caller_); }

#else

// Saves the registers a callee keeps on the stack in hand, stores its pointer at *save, and goes on on the stack `to`.
asm(R"(
.text
.type samba_fiber_switch, @function
samba_fiber_switch:
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
.size samba_fiber_switch, .-samba_fiber_switch
.type samba_fiber_entry, @function
samba_fiber_entry:
  movq %r12, %rdi
  call *%r13
  ud2
.size samba_fiber_entry, .-samba_fiber_entry
)");
extern "C" void samba_fiber_switch(void** save, void* to);
extern "C" void samba_fiber_entry();

void Fiber::resume() { samba_fiber_switch(&caller_, own_); }
void Fiber::wait() { samba_fiber_switch(&own_, caller_); }

void fiber_main(Fiber* fiber) { Fiber::entry(fiber); }

#endif

Fiber::Fiber() {
  stack_ = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack_ == MAP_FAILED) throw Error(ErrorKind::resource, "out of memory: the stack of a device thread");
#if defined(SAMBA_FIBER_UCONTEXT)
  getcontext(&own_);
  own_.uc_stack.ss_sp = stack_;
  own_.uc_stack.ss_size = kStackBytes;
  own_.uc_link = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  makecontext(&own_, reinterpret_cast<void (*)()>(&Fiber::ucontext_entry), 2, static_cast<unsigned>(self),
              static_cast<unsigned>(self >> 32));
#else
  // What samba_fiber_switch pops: r15, r14, r13, r12, rbx, rbp, and the address it returns to.
  auto* top = reinterpret_cast<std::uintptr_t*>(static_cast<char*>(stack_) + kStackBytes) - 2;
  *--top = reinterpret_cast<std::uintptr_t>(&samba_fiber_entry);
  *--top = 0;
  *--top = 0;
  *--top = reinterpret_cast<std::uintptr_t>(this);
  *--top = reinterpret_cast<std::uintptr_t>(&fiber_main);
  *--top = 0;
  *--top = 0;
  own_ = top;
#endif
}

Fiber::~Fiber() { munmap(stack_, kStackBytes); }

}  // namespace samba::gpu_host
