// A barrier that is missing shows: kernels on the host adapter without one of their barriers give other bits in some
// order of the threads, or part its threads.
#pragma once

#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernel_twins.h"
#include "samba/backends/gpu/host/context.h"
#include "samba/core/error.h"

namespace samba {

inline bool same_bits(const Results& a, const Results& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(a[i].data(), b[i].data(), static_cast<std::size_t>(a[i].size()) * sizeof(float)) != 0) return false;
  }
  return true;
}

// Leaves out, one after the other, every barrier that `run` meets in files whose path ends with `files`; each must be
// missed. Returns how many there were.
inline std::size_t check_missing_barriers(const std::function<Results(Executor&)>& run, std::string_view files = "") {
  const auto whole = make_executor("gpu-host", {1, "warp32"});
  const Results want = run(*whole);
  std::size_t count = 0;
  for (const gpu_host::Site& site : gpu_host::barrier_sites(*whole)) {
    if (!std::string_view(site.file).ends_with(files)) continue;
    ++count;
    INFO("without the barrier at " << gpu_host::site_text(site));
    gpu_host::skip_barrier(site.file, site.line);
    bool caught = false;
    for (int seed = 1; seed <= 4 && !caught; ++seed) {
      try {
        caught = !same_bits(run(*make_executor("gpu-host", {1, "warp32-seed" + std::to_string(seed)})), want);
      } catch (const Error&) {
        caught = true;
      }
    }
    gpu_host::skip_barrier("", 0);
    CHECK(caught);
  }
  return count;
}

}  // namespace samba
