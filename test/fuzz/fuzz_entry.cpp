// samba_fuzz --reader=NAME [libFuzzer's own flags] FOLDER: one reader under libFuzzer.
// samba_fuzz --list: their names. samba_fuzz --seeds=FOLDER: writes the inputs to begin with, a folder a reader.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "fuzz/readers.h"
#include "fuzz/seeds.h"

namespace {

const samba::fuzz::Reader* chosen = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  for (int i = 1; i < *count; ++i) {
    const std::string argument = (*arguments)[i];
    if (argument == "--list") {
      for (const auto& reader : samba::fuzz::readers()) std::puts(reader.name);
      std::exit(0);
    }
    if (argument.starts_with("--seeds=")) {
      samba::fuzz::write_seeds(argument.substr(8));
      std::exit(0);
    }
    if (argument.starts_with("--reader=")) chosen = samba::fuzz::find_reader(argument.substr(9));
  }
  if (chosen == nullptr) {
    std::fputs("samba_fuzz: --reader=NAME is needed; --list names them\n", stderr);
    std::exit(2);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  samba::fuzz::run(*chosen, std::as_bytes(std::span(data, size)));
  return 0;
}
