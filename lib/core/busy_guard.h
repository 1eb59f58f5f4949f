// Marks an object as in use for the length of one call and refuses a second one meanwhile, from whatever thread or from
// inside the first (a callback). For that time the floating-point control word is the one samba computes with.
#pragma once

#include <atomic>
#include <string>

#include "samba/core/error.h"
#include "samba/core/float_environment.h"

namespace samba {

class BusyGuard {
 public:
  // Error(value): "<what> is in the middle of another call; ..."
  BusyGuard(std::atomic<bool>& busy, const char* what) : busy_(busy) {
    if (!busy_.exchange(true)) return;
    refuse_value(std::string(what) + " is in the middle of another call; it serves one at a time");
  }
  ~BusyGuard() { busy_ = false; }
  BusyGuard(const BusyGuard&) = delete;
  BusyGuard& operator=(const BusyGuard&) = delete;

 private:
  std::atomic<bool>& busy_;
  FloatScope float_scope_;
};

}  // namespace samba
