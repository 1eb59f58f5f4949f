// samba_fuzz --reader=NAME [libFuzzer's own flags] FOLDER: one reader under libFuzzer.
// samba_fuzz --list: their names. samba_fuzz --seeds=FOLDER: writes the inputs to begin with, a folder a reader, and a
// dictionary beside each.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "fuzz/parts.h"
#include "fuzz/readers.h"
#include "fuzz/seeds.h"

namespace {

const samba::fuzz::Reader* chosen = nullptr;

}  // namespace

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

// Every other change is one of a part that has its length elsewhere, which is put right (parts.h).
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
  if (seed % 2 == 0) {
    const auto part = samba::fuzz::part_of(chosen->name, {reinterpret_cast<const char*>(data), size}, seed / 2);
    if (part) {
      std::string content = part->content;
      content.resize(std::max<std::size_t>(64, 2 * content.size()));
      content.resize(
          LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(content.data()), part->content.size(), content.size()));
      const std::string file = part->file_with(content);
      if (file.size() <= most) {
        std::memcpy(data, file.data(), file.size());
        return file.size();
      }
    }
  }
  return LLVMFuzzerMutate(data, size, most);
}

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
