#include "samba/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cctype>
#include <new>

#include "samba/core/error.h"

namespace samba {

namespace {

constexpr std::size_t kLongestPattern = 4096;
constexpr std::size_t kFirstJitStack = std::size_t{32} << 10;
constexpr std::size_t kMostJitStack = std::size_t{8} << 20;
constexpr std::uint32_t kMatchLimit = 50'000'000;

// The pattern in PCRE2's words.
class Translation {
 public:
  Translation(std::string_view pattern, const std::string& where) : pattern_(pattern), where_(where) {}

  std::string run() {
    while (at_ < pattern_.size()) step();
    if (in_class_) refuse("a class without an end");
    return out_;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    refuse_unsupported(where_ + ": " + what + " is not supported in the pattern " + std::string(pattern_));
  }
  char peek(std::size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  bool follows(std::string_view text) const { return pattern_.substr(at_, text.size()) == text; }
  void copy(std::size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += count;
  }

  void step() {
    const char c = peek();
    if (c == '\\') return escape();
    if (in_class_) return in_class();
    switch (c) {
      case '[':
        return open_class();
      case '(':
        return group();
      case '{':
        return count();
      case '^':
      case '$':
        refuse(std::string("the anchor ") + c);
      default:
        return copy(1);
    }
  }

  void open_class() {
    in_class_ = true;
    copy(1);
    if (peek() == '^') copy(1);
    if (peek() == ']') refuse("']' as the first member of a class");
  }

  void in_class() {
    if (peek() == '[') refuse("'[' inside a class");
    if (follows("&&")) refuse("the intersection &&");
    if (peek() == ']') in_class_ = false;
    copy(1);
  }

  void group() {
    if (peek(1) != '?') return copy(1);
    for (const std::string_view form : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:"}) {
      if (follows(form)) return copy(form.size());
    }
    refuse("the group " + std::string(pattern_.substr(at_, 3)));
  }

  // {n}, {n,}, {n,m}: behind it, '+' and '?' mean different things in the two libraries.
  void count() {
    std::size_t end = at_ + 1;
    while (end < pattern_.size() && (std::isdigit(static_cast<unsigned char>(pattern_[end])) || pattern_[end] == ','))
      ++end;
    if (end >= pattern_.size() || pattern_[end] != '}' || !std::isdigit(static_cast<unsigned char>(peek(1)))) {
      refuse("'{' that is no count");
    }
    copy(end + 1 - at_);
    if (peek() == '+' || peek() == '?') refuse(std::string("'") + peek() + "' behind a count");
  }

  void escape() {
    const char c = peek(1);
    switch (c) {
      case 's':
        return put("\\p{White_Space}");
      case 'S':
        return put("\\P{White_Space}");
      case 'd':
        return put("\\p{Nd}");
      case 'D':
        return put("\\P{Nd}");
      case 'w':
        return put(in_class_ ? "\\p{L}\\p{M}\\p{N}\\p{Pc}" : "[\\p{L}\\p{M}\\p{N}\\p{Pc}]");
      case 'W':
        if (in_class_) refuse("\\W inside a class");
        return put("[^\\p{L}\\p{M}\\p{N}\\p{Pc}]");
      case 'p':
      case 'P': {
        const std::size_t end = pattern_.find('}', at_);
        if (peek(2) != '{' || end == std::string_view::npos) refuse("\\p without {}");
        return copy(end + 1 - at_);
      }
      case 'r':
      case 'n':
      case 't':
      case 'f':
        return copy(2);
      default:
        if (c == '\0' || std::isalnum(static_cast<unsigned char>(c)) || static_cast<unsigned char>(c) >= 0x80) {
          refuse(std::string("the escape \\") + (c == '\0' ? "" : std::string(1, c)));
        }
        return copy(2);
    }
  }
  void put(std::string_view text) {
    out_ += text;
    at_ += 2;
  }

  std::string_view pattern_;
  const std::string& where_;
  std::string out_;
  std::size_t at_ = 0;
  bool in_class_ = false;
};

std::string message_of(int error) {
  PCRE2_UCHAR8 text[256];
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  ~Code() { pcre2_code_free(code); }
};

struct Regex::Scratch::Data {
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kFirstJitStack, kMostJitStack, nullptr);
  pcre2_match_data* match = pcre2_match_data_create(1, nullptr);
  Data() {
    if (context == nullptr || match == nullptr) throw std::bad_alloc();
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Data() {
    pcre2_match_data_free(match);
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
  }
};

Regex::Scratch::Scratch() : data_(std::make_unique<Data>()) {}
Regex::Scratch::~Scratch() = default;
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

Regex::Regex(std::string_view pattern, const std::string& where) : code_(std::make_unique<Code>()) {
  if (pattern.size() > kLongestPattern) {
    refuse_value(where + ": a pattern of " + std::to_string(pattern.size()) + " bytes; accepted: at most " +
                 std::to_string(kLongestPattern));
  }
  const std::string translated = Translation(pattern, where).run();
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);  // what '.' leaves out
  int error = 0;
  std::size_t offset = 0;
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR8>(translated.data()), translated.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context.get());
  if (code_->code == nullptr && error == PCRE2_ERROR_HEAP_FAILED) throw std::bad_alloc();
  if (code_->code == nullptr) {
    refuse_value(where + ": the pattern " + std::string(pattern) + " is wrong: " + message_of(error));
  }
  std::uint32_t matches_empty = 0;
  pcre2_pattern_info(code_->code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) refuse_unsupported(where + ": the pattern " + std::string(pattern) + " can match nothing");
  code_->jit = pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE) == 0;
}

bool Regex::find(std::string_view text, std::size_t from, Scratch& scratch, std::size_t& begin,
                 std::size_t& end) const {
  Scratch::Data& data = *scratch.data_;
  const auto subject = reinterpret_cast<PCRE2_SPTR8>(text.data());
  const int result =
      code_->jit ? pcre2_jit_match(code_->code, subject, text.size(), from, 0, data.match, data.context)
                 : pcre2_match(code_->code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, data.match, data.context);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result == PCRE2_ERROR_NOMEMORY || result == PCRE2_ERROR_HEAPLIMIT) throw std::bad_alloc();
  if (result < 0) refuse_value("the tokenizer's pattern cannot be matched: " + message_of(result));
  const std::size_t* const bounds = pcre2_get_ovector_pointer(data.match);
  begin = bounds[0];
  end = bounds[1];
  return true;
}

}  // namespace samba
