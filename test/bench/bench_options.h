// The flags that the programs of this folder share: --threads N, --repetitions N, --isa NAME.
#pragma once

#include <cstring>
#include <string>

#include "samba/backends/registry.h"

struct BenchOptions {
  samba::ExecutorOptions executor{.threads = 1, .instruction_set = {}};
  int repetitions = 9;
};

inline BenchOptions parse_bench_options(int argc, char** argv) {
  BenchOptions options;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--threads") == 0) options.executor.threads = std::stoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--repetitions") == 0) options.repetitions = std::stoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--isa") == 0) options.executor.instruction_set = argv[i + 1];
  }
  return options;
}
