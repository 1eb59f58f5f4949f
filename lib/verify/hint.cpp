#include "samba/verify/hint.h"

#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "samba/numerics/elementary.h"
#include "samba/numerics/float32.h"
#include "samba/numerics/fold.h"

namespace samba::verify {
namespace {

constexpr Index kSamples = 16;     // elements on which a supposed source is tested
constexpr std::size_t kMost = 48;  // tensors of one shape that are tried as operands

bool same(float a, float b) { return to_bits(a) == to_bits(b) || (is_nan(a) && is_nan(b)); }

// ---- the ways to add up products ----

using Term = std::function<std::pair<float, float>(Index)>;
using Sum = std::function<float(Index k, const Term& term)>;

float keep(float x) { return x; }

// One chain in ascending order.
template <class Flush>
float chain(Index first, Index end, const Term& term, Flush&& f, bool fused) {
  float acc = 0.0F;
  for (Index i = first; i < end; ++i) {
    const auto [a, b] = term(i);
    acc = fused ? f(fma(f(a), f(b), acc)) : f(f(f(a) * f(b)) + acc);
  }
  return acc;
}

template <class Flush>
float leaves(Index k, Index leaf, const Term& term, Flush&& f, bool fused, bool tree) {
  std::vector<float> partials;
  for (Index first = 0; first < k; first += leaf) {
    partials.push_back(chain(first, std::min(k, first + leaf), term, f, fused));
  }
  if (!tree) {
    float sum = 0.0F;
    for (const float partial : partials) sum = f(sum + partial);
    return sum;
  }
  while (partials.size() > 1) {
    std::vector<float> next;
    for (std::size_t i = 0; i < partials.size(); i += 2) {
      next.push_back(i + 1 < partials.size() ? f(partials[i] + partials[i + 1]) : partials[i]);
    }
    partials = std::move(next);
  }
  return partials.empty() ? 0.0F : partials[0];
}

// Partial sums side by side, as a vector of `lanes` holds them.
float side_by_side(Index k, Index lanes, const Term& term) {
  std::vector<float> sums(static_cast<std::size_t>(lanes), 0.0F);
  for (Index i = 0; i < k; ++i) {
    const auto [a, b] = term(i);
    float& sum = sums[static_cast<std::size_t>(i % lanes)];
    sum = mad(a, b, sum);
  }
  for (std::size_t width = sums.size() / 2; width > 0; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) sums[i] = add(sums[i], sums[i + width]);
  }
  return sums[0];
}

float descending(Index k, const Term& term) {
  const Term turned = [&](Index i) { return term(k - 1 - i); };
  return chain(0, k, turned, flush, true);
}

float in_double(Index k, const Term& term) {
  double sum = 0.0;
  for (Index i = 0; i < k; ++i) {
    const auto [a, b] = term(i);
    sum += static_cast<double>(flush(a)) * static_cast<double>(flush(b));
  }
  return static_cast<float>(sum);
}

// A result below the smallest normal number before rounding becomes zero, as the processor's flush-to-zero does it.
float hardware_flush(Index k, Index leaf, const Term& term) {
  std::vector<float> partials;
  for (Index first = 0; first < k; first += leaf) {
    float acc = 0.0F;
    for (Index i = first; i < std::min(k, first + leaf); ++i) {
      const auto [a, b] = term(i);
      const double exact = static_cast<double>(flush(a)) * static_cast<double>(flush(b)) + static_cast<double>(acc);
      const float rounded = fma(flush(a), flush(b), acc);
      acc = std::fabs(exact) < static_cast<double>(kMinNormal) ? std::copysign(0.0F, rounded) : rounded;
    }
    partials.push_back(acc);
  }
  TreeFold fold;
  for (const float partial : partials) fold.push(partial);
  return fold.finish();
}

struct SumDeviation {
  std::string text;
  Sum sum;
};

std::vector<SumDeviation> sum_deviations() {
  std::vector<SumDeviation> all = {
      {"a product and a sum in two roundings where a fused step belongs",
       [](Index k, const Term& t) { return leaves(k, leaf_length(k), t, flush, false, true); }},
      {"subnormal values kept: a flush is missing",
       [](Index k, const Term& t) { return leaves(k, leaf_length(k), t, keep, true, true); }},
      {"the processor's flush-to-zero in place of the flush of the result",
       [](Index k, const Term& t) { return hardware_flush(k, leaf_length(k), t); }},
      {"wrong leaf: one chain over all terms in place of leaves of 128",
       [](Index k, const Term& t) { return leaves(k, k, t, flush, true, true); }},
      {"the order of a sum: leaves added one after another in place of the tree",
       [](Index k, const Term& t) { return leaves(k, leaf_length(k), t, flush, true, false); }},
      {"the order of a sum: terms from the last to the first", descending},
      {"the order of a sum: added up in double precision", in_double},
  };
  for (const Index leaf : {8, 16, 32, 64, 96, 256, 512, 1024}) {
    all.push_back({"wrong leaf: leaves of " + std::to_string(leaf) + " in place of 128",
                   [leaf](Index k, const Term& t) { return leaves(k, leaf, t, flush, true, true); }});
  }
  for (const Index lanes : {2, 4, 8, 16, 32}) {
    all.push_back({"the order of a sum: " + std::to_string(lanes) + " partial sums side by side",
                   [lanes](Index k, const Term& t) { return side_by_side(k, lanes, t); }});
  }
  return all;
}

float rule(Index k, const Term& t) { return leaves(k, leaf_length(k), t, flush, true, true); }

// ---- the search ----

struct Operand {
  std::string name;
  ConstArray array;
};

class Search {
 public:
  Search(const Difference& difference, const Array& want, const TensorSet& tensors)
      : difference_(difference), want_(want), got_(*difference.got_values) {
    columns_ = want.shape().empty() ? 1 : want.shape().back();
    rows_ = columns_ == 0 ? 0 : want.size() / columns_;
    for (const auto& [name, array] : tensors.with_prefix("")) {
      if (array.dtype != DType::float32 || array.size() == 0 || name == difference.name) continue;
      if (array.size() == want.size() && alike_.size() < kMost) alike_.push_back({name, array});
      if (array.shape.size() == 1 && array.size() == columns_ && rows_ > 1) per_column_.push_back({name, array});
      if (array.shape.size() >= 2) matrices_.push_back({name, array});
    }
    const Index step = std::max<Index>(1, want.size() / kSamples);
    for (Index i = 0; i < want.size(); i += step) samples_.push_back(i);
    samples_.push_back(*difference.index);
  }

  std::string find() {
    for (const auto& attempt :
         {&Search::products, &Search::one_operand, &Search::two_operands, &Search::three_operands}) {
      const std::string text = (this->*attempt)();
      if (!text.empty()) return text;
    }
    return "";
  }

 private:
  using Value = std::function<float(Index flat)>;

  // The rule gives the recorded values of all samples.
  bool explains_record(const Value& value) const {
    for (const Index i : samples_) {
      if (!same(value(i), want_.floats()[static_cast<std::size_t>(i)])) return false;
    }
    return true;
  }
  // The deviation gives what was computed, in the element and in the samples.
  bool explains_result(const Value& value) const {
    for (const Index i : samples_) {
      if (!same(value(i), got_.floats()[static_cast<std::size_t>(i)])) return false;
    }
    return true;
  }

  std::string told(const std::string& source, const std::vector<std::pair<std::string, Value>>& deviations) const {
    for (const auto& [text, value] : deviations) {
      if (explains_result(value)) return text + " gives these bits (" + source + ")";
    }
    return "none of the usual deviations of " + source + " gives these bits";
  }

  // want = A times B transposed, or A times B.
  std::string products() {
    const auto sums = sum_deviations();
    for (const Operand& a : matrices_) {
      const Index k = a.array.shape.back();
      if (k == 0 || a.array.size() / k != rows_) continue;
      for (const Operand& b : matrices_) {
        if (b.array.shape.size() != 2 || &a == &b) continue;
        const bool turned = b.array.shape[0] == columns_ && b.array.shape[1] == k;
        if (!turned && !(b.array.shape[0] == k && b.array.shape[1] == columns_)) continue;
        const auto terms = [&, turned](Index flat) -> Term {
          const float* x = a.array.floats() + flat / columns_ * k;
          const float* w = b.array.floats() + (turned ? flat % columns_ * k : flat % columns_);
          const Index stride = turned ? 1 : columns_;
          return [x, w, stride](Index i) { return std::pair(x[i], w[i * stride]); };
        };
        if (!explains_record([&](Index i) { return rule(k, terms(i)); })) continue;
        std::vector<std::pair<std::string, Value>> deviations;
        for (const SumDeviation& sum : sums) {
          deviations.emplace_back(sum.text, [&, k](Index i) { return sum.sum(k, terms(i)); });
        }
        return told("the product of " + a.name + " and " + b.name, deviations);
      }
    }
    return "";
  }

  std::string one_operand() {
    struct Function {
      const char* name;
      float (*ours)(float);
      double (*libm)(double);
    };
    const Function functions[] = {
        {"exp", elementary::exp, std::exp},
        {"log", elementary::log, std::log},
        {"log1p", elementary::log1p, std::log1p},
        {"sqrt", elementary::sqrt, std::sqrt},
        {"rsqrt", elementary::rsqrt, [](double x) { return 1.0 / std::sqrt(x); }},
        {"sigmoid", elementary::sigmoid, [](double x) { return 1.0 / (1.0 + std::exp(-x)); }},
        {"silu", elementary::silu, [](double x) { return x / (1.0 + std::exp(-x)); }},
        {"softplus", elementary::softplus, [](double x) { return std::log1p(std::exp(x)); }},
        {"sin", elementary::sin, std::sin},
        {"cos", elementary::cos, std::cos},
        {"tanh", elementary::tanh, std::tanh},
        {"erf", elementary::erf, std::erf},
        {"gelu", elementary::gelu, [](double x) { return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0))); }},
        {"flush", flush, [](double x) { return x; }},
    };
    for (const Operand& x : alike_) {
      const float* values = x.array.floats();
      for (const Function& function : functions) {
        if (!explains_record([&](Index i) { return flush(function.ours(values[i])); })) continue;
        return told(std::string(function.name) + " of " + x.name,
                    {{"subnormal values kept: a flush is missing", [&](Index i) { return function.ours(values[i]); }},
                     {"the function of a library, in double precision",
                      [&](Index i) { return static_cast<float>(function.libm(static_cast<double>(values[i]))); }},
                     {"no function at all: the input itself", [&](Index i) { return values[i]; }}});
      }
    }
    return "";
  }

  float at(const Operand& operand, Index flat) const {
    return operand.array.floats()[operand.array.size() == want_.size() ? flat : flat % columns_];
  }

  std::vector<const Operand*> operands() const {
    std::vector<const Operand*> all;
    for (const Operand& operand : alike_) all.push_back(&operand);
    for (const Operand& operand : per_column_) all.push_back(&operand);
    return all;
  }

  std::string two_operands() {
    struct Operation {
      const char* name;
      float (*ours)(float, float);
      float (*bare)(float, float);
      float (*other)(float, float);
      const char* other_text;
    };
    const auto plus = [](float a, float b) { return a + b; };
    const auto times = [](float a, float b) { return a * b; };
    const auto gate = [](float a, float b) { return mul(flush(elementary::silu(a)), b); };
    const Operation operations[] = {
        {"sum", add, plus, [](float a, float b) { return sub(a, b); }, "a difference in place of a sum"},
        {"product", mul, times, [](float a, float b) { return add(a, b); }, "a sum in place of a product"},
        {"difference", sub, [](float a, float b) { return a - b; }, plus, "a sum in place of a difference"},
        {"quotient", div, [](float a, float b) { return a / b; }, [](float a, float b) { return mul(a, div(1.0F, b)); },
         "a product with the reciprocal in place of a division"},
        {"silu-gated product", gate, [](float a, float b) { return elementary::silu(a) * b; },
         [](float a, float b) { return mul(mul(a, elementary::sigmoid(a)), b); },
         "x times sigmoid(x) in place of silu(x)"},
    };
    const auto all = operands();
    for (const Operand* a : all) {
      for (const Operand* b : all) {
        for (const Operation& operation : operations) {
          if (!explains_record([&](Index i) { return operation.ours(at(*a, i), at(*b, i)); })) continue;
          return told(std::string("the ") + operation.name + " of " + a->name + " and " + b->name,
                      {{"subnormal values kept: a flush is missing",
                        [&](Index i) { return operation.bare(at(*a, i), at(*b, i)); }},
                       {operation.other_text, [&](Index i) { return operation.other(at(*a, i), at(*b, i)); }}});
        }
      }
    }
    return "";
  }

  // a*b + c with one rounding or two.
  std::string three_operands() {
    const auto all = operands();
    for (const Operand* a : all) {
      for (const Operand* b : all) {
        for (const Operand* c : all) {
          const Value fused = [&](Index i) { return mad(at(*a, i), at(*b, i), at(*c, i)); };
          const Value apart = [&](Index i) { return add(mul(at(*a, i), at(*b, i)), at(*c, i)); };
          const std::string source = a->name + " * " + b->name + " + " + c->name;
          if (explains_record(apart)) {
            return told(source, {{"a fused step where two roundings belong", fused}});
          }
          if (explains_record(fused)) {
            return told(source, {{"a product and a sum in two roundings where a fused step belongs", apart}});
          }
        }
      }
    }
    return "";
  }

  const Difference& difference_;
  const Array& want_;
  const Array& got_;
  Index columns_ = 1, rows_ = 0;
  std::vector<Operand> alike_, per_column_, matrices_;
  std::vector<Index> samples_;
};

// What the two values alone say.
std::string value_hint(const Difference& difference) {
  const float got = from_bits(difference.got_bits), want = from_bits(difference.want_bits);
  if (is_nan(got) != is_nan(want)) return is_nan(got) ? "a NaN where a number belongs" : "a number where NaN belongs";
  if (got == 0.0F && want == 0.0F) return "the sign of a zero";
  if ((to_bits(got) & kExponentMask) == 0 && got != 0.0F) return "a subnormal value that was not flushed to zero";
  if (got == 0.0F && std::fabs(want) < kMinNormal * 2) return "flushed too early: the processor's flush-to-zero is on";
  return "";
}

}  // namespace

std::string divergence_hint(const Difference& difference, const TensorSet& tensors) {
  if (!difference.index || !difference.got_values || difference.got_values->dtype() != DType::float32) return "";
  std::string hint = value_hint(difference);
  const Array* want = tensors.find(difference.name);
  std::string search;
  if (want != nullptr && want->shape() == difference.got_values->shape()) {
    search = Search(difference, *want, tensors).find();
  }
  if (!search.empty()) return hint.empty() ? search : hint + "; " + search;
  if (!hint.empty()) return hint;
  if (difference.ulp <= 4) return "a rounding: a fused step, or the order of a sum";
  return "more than a rounding: another formula, input or position";
}

}  // namespace samba::verify
