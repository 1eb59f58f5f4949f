// Tokens to text, and the sampler.
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "samba/core/error.h"
#include "samba/core/float_environment.h"
#include "samba/generate/sampler.h"
#include "samba/numerics/elementary.h"
#include "samba/numerics/philox.h"
#include "samba/text/tokenizer.h"

namespace samba {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("a byte is a token and back") {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  const auto tokens = byte_tokens(all);
  for (int i = 0; i < 256; ++i) CHECK(tokens[static_cast<std::size_t>(i)] == i);
  CHECK(byte_text(tokens) == all);
}

TEST_CASE("a character is given out when its last byte arrives; what is none becomes U+FFFD") {
  Utf8Stream stream;
  CHECK(stream.push("a\xC3") == "a");
  CHECK(stream.push("\xA9") == "\xC3\xA9");
  CHECK(stream.push("\xF0\x9F") == "");
  CHECK(stream.push("\x98") == "");
  CHECK(stream.push("\x80!") == "\xF0\x9F\x98\x80!");
  CHECK(stream.push("\xE2\x82z") == "\xEF\xBF\xBDz");                            // cut short by another character
  CHECK(stream.push("\xC0\xAF") == "\xEF\xBF\xBD\xEF\xBF\xBD");                  // overlong
  CHECK(stream.push("\xED\xA0\x80") == "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");  // a surrogate
  CHECK(stream.push("\xF4\x90") == "\xEF\xBF\xBD\xEF\xBF\xBD");                  // beyond U+10FFFF
  CHECK(stream.push("\xE2") == "");
  CHECK(stream.finish() == "\xEF\xBF\xBD");
  CHECK(stream.finish().empty());
}

std::vector<float> some_logits(std::size_t count) {
  std::vector<float> logits(count);
  for (std::size_t i = 0; i < count; ++i) logits[i] = stream_normal(11, 3, i, 0.0F, 2.0F);
  return logits;
}

TEST_CASE("temperature 0 takes the largest logit, the lowest id on ties") {
  Sampler sampler({}, 5);
  CHECK(sampler.next(std::vector<float>{1, 3, 2, 3, 0}, {}, 0, 0) == 1);
  CHECK(sampler.next(std::vector<float>{-0.0F, 0.0F, -1, -1, -1}, {}, 0, 0) == 0);
}

TEST_CASE("the draw depends on seed, sample and index only") {
  const auto logits = some_logits(64);
  SamplerOptions options;
  options.temperature = 1.0;
  options.seed = 5;
  Sampler one(options, 64);
  Sampler two(options, 64);
  std::vector<std::int32_t> forward;
  for (std::uint64_t i = 0; i < 50; ++i) forward.push_back(one.next(logits, {}, 2, i));
  for (std::uint64_t i = 50; i-- > 0;) CHECK(two.next(logits, {}, 2, i) == forward[i]);
  CHECK(std::set<std::int32_t>(forward.begin(), forward.end()).size() > 5);
}

TEST_CASE("recorded draws: logits normal(0, 2) of stream (11, 3)") {
  const auto logits = some_logits(64);
  const auto draws = [&](SamplerOptions options, std::vector<std::int32_t> context = {}) {
    options.seed = 5;
    Sampler sampler(options, 64);
    std::vector<std::int32_t> ids;
    for (std::uint64_t i = 0; i < 8; ++i) ids.push_back(sampler.next(logits, context, 1, i));
    return ids;
  };
  using Ids = std::vector<std::int32_t>;
  SamplerOptions options;
  options.temperature = 0.8;
  CHECK(draws(options) == Ids{1, 1, 7, 53, 25, 29, 53, 9});
  options.top_k = 4;
  CHECK(draws(options) == Ids{25, 25, 1, 7, 25, 9, 7, 1});
  options.top_p = 0.6;
  CHECK(draws(options) == Ids{25, 25, 25, 1, 25, 1, 1, 25});
  options = {};
  options.temperature = 1.5;
  options.min_p = 0.2;
  CHECK(draws(options) == Ids{7, 1, 9, 20, 1, 0, 20, 53});
  options.repetition_penalty = 1.7;
  CHECK(draws(options, draws(options)) == Ids{36, 25, 33, 7, 25, 23, 7, 33});
}

TEST_CASE("draws follow the distribution that the filters leave") {
  const std::vector<float> logits{std::log(0.5F), std::log(0.3F), std::log(0.15F), std::log(0.05F)};
  const auto counts = [&](SamplerOptions options) {
    options.temperature = 1.0;
    Sampler sampler(options, 4);
    std::vector<double> share(4);
    for (std::uint64_t i = 0; i < 20000; ++i)
      share[static_cast<std::size_t>(sampler.next(logits, {}, 0, i))] += 1.0 / 20000;
    return share;
  };
  // 20,000 draws: a standard deviation is at most 0.0036, the margin more than five of them.
  const auto plain = counts({});
  CHECK(plain[0] == Approx(0.5).margin(0.02));
  CHECK(plain[3] == Approx(0.05).margin(0.02));
  SamplerOptions top_k;
  top_k.top_k = 2;
  CHECK(counts(top_k)[0] == Approx(0.625).margin(0.02));
  CHECK(counts(top_k)[2] == 0.0);
  SamplerOptions top_p;
  top_p.top_p = 0.79;  // 0.5 + 0.3 reaches it
  CHECK(counts(top_p)[1] == Approx(0.375).margin(0.02));
  CHECK(counts(top_p)[2] == 0.0);
  SamplerOptions min_p;
  min_p.min_p = 0.2;  // of the largest: at least 0.1
  CHECK(counts(min_p)[2] > 0.1);
  CHECK(counts(min_p)[3] == 0.0);
}

// The rule of design/decisions.md word for word: every token is sorted, every sum is taken.
std::int32_t plain_draw(std::span<const float> logits, const SamplerOptions& options, std::uint64_t index) {
  const FloatScope float_scope;
  std::vector<std::pair<float, std::int32_t>> all;
  std::vector<float> scaled;
  float top = -kInfinity;
  for (const float logit : logits) {
    scaled.push_back(div(flush(logit), static_cast<float>(options.temperature)));
    top = max(top, scaled.back());
  }
  for (std::size_t v = 0; v < scaled.size(); ++v) {
    all.emplace_back(elementary::exp(sub(scaled[v], top)), static_cast<std::int32_t>(v));
  }
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; });
  std::vector<float> sums;
  float sum = 0.0F;
  for (const auto& [weight, id] : all) sums.push_back(sum = add(sum, weight));
  std::size_t kept = all.size();
  if (options.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(options.top_k));
  const float enough = mul(static_cast<float>(options.top_p), sums[kept - 1]);
  std::size_t reached = 0;
  while (sums[reached] < enough) ++reached;
  kept = std::min(kept, reached + 1);
  while (kept > 1 && all[kept - 1].first < mul(static_cast<float>(options.min_p), all[0].first)) --kept;
  const float target = mul(stream_coin(options.seed, 0, index), sums[kept - 1]);
  std::size_t drawn = 0;
  while (drawn + 1 < kept && !(sums[drawn] > target)) ++drawn;
  return all[drawn].second;
}

TEST_CASE("the sampler draws what sorting the whole vocabulary draws") {
  constexpr std::size_t kVocab = 3000;
  std::uint64_t index = 0;
  for (const float spread : {0.0F, 1e-6F, 0.3F, 4.0F, 30.0F, 1e6F}) {
    for (const double temperature : {0.2, 1.0, 7.0}) {
      for (const std::int64_t top_k : {0, 1, 2, 40, 2999, 3000, 5000}) {
        SamplerOptions options;
        options.temperature = temperature;
        options.top_k = top_k;
        for (const auto& [top_p, min_p] : {std::pair(1.0, 0.0), std::pair(0.9, 0.0), std::pair(1.0, 1e-7),
                                           std::pair(0.5, 0.3), std::pair(1e-9, 0.0)}) {
          options.top_p = top_p;
          options.min_p = min_p;
          options.seed = ++index;
          // Some of the logits are equal, so that the order of the ids counts.
          std::vector<float> logits(kVocab);
          for (std::size_t v = 0; v < kVocab; ++v) logits[v] = stream_normal(index, 1, v / 3, 0.0F, spread);
          Sampler sampler(options, kVocab);
          for (std::uint64_t i = 0; i < 2; ++i)
            REQUIRE(sampler.next(logits, {}, 0, i) == plain_draw(logits, options, i));
        }
      }
    }
  }
}

TEST_CASE("a temperature that makes a logit infinite is refused") {
  SamplerOptions options;
  options.temperature = 1e-3;
  CHECK_THROWS_WITH(Sampler(options, 2).next(std::vector<float>{1e37F, 0.0F}, {}, 0, 0), Contains("is not finite"));
}

TEST_CASE("options out of range are refused by name") {
  const auto refused = [](auto change, const char* name) {
    SamplerOptions options;
    change(options);
    CHECK_THROWS_WITH(check_sampler_options(options), Contains(name));
  };
  refused([](SamplerOptions& o) { o.temperature = -1; }, "temperature");
  refused([](SamplerOptions& o) { o.temperature = 1e-40; }, "temperature");
  refused([](SamplerOptions& o) { o.temperature = std::nan(""); }, "temperature");
  refused([](SamplerOptions& o) { o.top_k = -1; }, "top-k");
  refused([](SamplerOptions& o) { o.top_p = 0; }, "top-p");
  refused([](SamplerOptions& o) { o.top_p = 1.1; }, "top-p");
  refused([](SamplerOptions& o) { o.min_p = -0.1; }, "min-p");
  refused([](SamplerOptions& o) { o.repetition_penalty = 0; }, "repetition penalty");
  Sampler sampler({}, 2);
  CHECK_THROWS_WITH(sampler.next(std::vector<float>{0.0F, INFINITY}, {}, 0, 0),
                    Contains("logit of token 1 is not finite"));
}

TEST_CASE("log probabilities sum to one") {
  const auto logits = some_logits(64);
  double sum = 0.0;
  for (std::int32_t id = 0; id < 64; ++id) sum += std::exp(static_cast<double>(log_probability(logits, id)));
  CHECK(sum == Approx(1.0).epsilon(1e-5));
}

}  // namespace
}  // namespace samba
