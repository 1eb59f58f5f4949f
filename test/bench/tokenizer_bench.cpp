// Encoding speed of a tokenizer on one core: tokenizer_bench TOKENIZER TEXT_FILE
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <exception>

#include "samba/core/files.h"
#include "samba/text/tokenizer.h"

namespace {

constexpr int kRuns = 5;

double processor_seconds() { return static_cast<double>(std::clock()) / static_cast<double>(CLOCKS_PER_SEC); }

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fprintf(stderr, "usage: tokenizer_bench TOKENIZER TEXT_FILE\n");
    return 2;
  }
  const double start = processor_seconds();
  const auto tokenizer = samba::load_tokenizer(argv[1]);
  std::printf("%s, %lld pieces, loaded in %.3f s\n", tokenizer->kind().c_str(),
              static_cast<long long>(tokenizer->vocabulary_size()), processor_seconds() - start);
  const std::string text = samba::read_file(argv[2]);
  double best = 1e9;
  std::size_t tokens = 0;
  for (int i = 0; i < kRuns; ++i) {
    const double begin = processor_seconds();
    tokens = tokenizer->encode(text).size();
    best = std::min(best, processor_seconds() - begin);
  }
  std::printf("%zu bytes, %zu tokens: %.1f MB/s\n", text.size(), tokens, static_cast<double>(text.size()) / 1e6 / best);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "tokenizer_bench: %s\n", error.what());
  return 1;
}
