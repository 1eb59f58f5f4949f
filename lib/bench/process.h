// A program run from its start to its end: when it first said something, how much memory it had at most.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace samba::bench {

struct ProcessResult {
  int code = 0;                     // exit code, or 128 + signal
  double first_output_seconds = 0;  // from the start to the first byte on stdout; the whole time when there was none
  double seconds = 0;
  std::size_t peak_resident = 0;  // bytes
  std::string out;
};

// arguments[0]: the program. stdin is empty, stderr is this process's. Error(resource) when it cannot be started.
ProcessResult run_process(const std::vector<std::string>& arguments);

}  // namespace samba::bench
