// Folders of several files, one of which a stranger changed, and texts to prepare.
#include <algorithm>
#include <memory>

#include "fuzz/fixtures.h"
#include "fuzz/readers.h"
#include "fuzz/repair.h"
#include "samba/convert/folder_run.h"
#include "samba/convert/initial_model.h"
#include "samba/convert/model_source.h"
#include "samba/core/error.h"
#include "samba/formats/file_hashes.h"
#include "samba/formats/token_shards.h"
#include "samba/text/model_text.h"
#include "samba/train/documents.h"
#include "samba/train/run_charts.h"
#include "samba/train/run_folder.h"

namespace samba::fuzz {

namespace {

// A folder below the scratch folder whose files are sound, but for those that were put there since renew().
class ChangedFolder {
 public:
  ChangedFolder(const std::string& name, const Files& sound) : name_(name), sound_(sound) {
    std::filesystem::remove_all(path());
    for (const auto& [file, content] : sound_) lay(file, content);
  }
  Path path() const { return scratch_folder() / name_; }
  void put(const std::string& file, const std::string& content) {
    lay(file, content);
    changed_.push_back(file);
  }
  void renew() {
    for (const std::string& file : changed_) {
      std::filesystem::remove(path() / file);
      if (sound_.contains(file)) lay(file, sound_.at(file));
    }
    changed_.clear();
  }

 private:
  void lay(const std::string& file, const std::string& content) const {
    std::filesystem::create_directories((path() / file).parent_path());
    file_with(std::as_bytes(std::span(content)), name_ + "/" + file);
  }

  std::string name_;
  const Files& sound_;
  std::vector<std::string> changed_;
};

// The first byte says which of the files the rest is.
std::string named_file(Bytes input, const Files& files) {
  return std::next(files.begin(), static_cast<std::ptrdiff_t>(static_cast<std::size_t>(input[0]) % files.size()))
      ->first;
}

void refuse_empty(Bytes input) {
  if (input.empty()) refuse_corrupt("input", "it is empty");
}

void read_shards(const Path& folder) {
  const TokenShards shards(folder);
  for (const ShardSet set : {ShardSet::train, ShardSet::held_out}) {
    const ShardSetCounts& counts = shards.counts(set);
    std::vector<std::int32_t> ids(counts.tokens);
    shards.read(set, 0, ids);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      expect(ids[i] >= 0 && ids[i] < shards.vocab(), "a token is one of the vocabulary");
      shards.counts_as_target(set, i);
    }
    std::uint64_t documents = 0;
    shards.for_each_document(set, [&](const DocumentRecord& record) {
      expect(record.end <= counts.tokens, "a document ends inside of its set");
      ++documents;
    });
    expect(documents == counts.documents, "the documents are as many as the index says");
  }
}

}  // namespace

void read_own_folder(Bytes input) {
  refuse_empty(input);
  static ChangedFolder folder("own", sound_folder());
  folder.renew();
  folder.put(named_file(input, sound_folder()), std::string(text_of(input.subspan(1))));
  const auto open = [&](Reading reading) {
    for (const ModelTensor& tensor : open_model(find_model(folder.path()), reading).tensors) tensor.load();
  };
  const bool inference = accepts([&] { open(Reading::inference); });
  open(Reading::everything);
  expect(inference, "what can be read for training can be read for inference");
}

void read_token_shards(Bytes input) {
  refuse_empty(input);
  static ChangedFolder folder("shards", sound_shards());
  folder.renew();
  const std::string name = named_file(input, sound_shards());
  const std::string content(text_of(input.subspan(1)));
  folder.put(name, content);
  const bool as_it_is = accepts([&] { read_shards(folder.path()); });
  if (as_it_is || digests_of_this_run() == Digests::as_they_are) {
    if (!as_it_is) refuse_corrupt("shards", "it cannot be read");
    return;
  }
  const std::string& index = name == kShardsIndex ? content : sound_shards().at(kShardsIndex);
  const auto repaired = repaired_shard_index(index, name, content);
  if (!repaired) refuse_corrupt("shards", "no index");
  folder.put(kShardsIndex, *repaired);
  read_shards(folder.path());
}

// What `samba prepare --resume` finds: progress.json says where the preparation was. Its settings are always this
// one's.
void read_stopped_preparation(Bytes input) {
  const StoppedPreparation& stopped = stopped_preparation();
  ChangedFolder folder("stopped", stopped.files);  // wholly new: it was gone on with
  const auto progress = repaired_progress(text_of(input), stopped.files.at("progress.json"));
  folder.put("progress.json", progress ? *progress : std::string(text_of(input)));
  PrepareOptions options = stopped.options;
  options.out = folder.path();
  options.resume = true;
  prepare(options, model_opener());
  // What goes on from another place has other documents; the shards must be sound, or be refused.
  accepts([&] { read_shards(folder.path()); });
}

void read_run_folder(Bytes input) {
  refuse_empty(input);
  static ChangedFolder folder("run", sound_run());
  folder.renew();
  folder.put(named_file(input, sound_run()), std::string(text_of(input.subspan(1))));
  const Path path = folder.path();
  const auto looks = {accepts([&] { read_model_text(find_checkpoint(path), 256); }),
                      accepts([&] { run_of_checkpoint(find_checkpoint(path)); }),
                      accepts([&] { loss_svg(read_run(path)); }), accepts([&] {
                        const auto run = RunFolder::resume(path);
                        parse_train_config(run->config(), "/");
                        RunFolder::card_beside(run->resume_archive());
                        run->evaluations();
                        run->cut_metrics(3);
                        run->checkpoint_steps();
                      })};
  const bool opened = accepts([&] {
    for (const ModelTensor& tensor : open_model(find_model(path), Reading::everything).tensors) tensor.load();
  });
  if (!opened || std::find(looks.begin(), looks.end(), false) != looks.end()) refuse_corrupt("run", "it is not sound");
}

void read_hashes_file(Bytes input) {
  static const Files files = [] {
    Files sound;
    const Path llama = Path(SAMBA_SOURCE_DIR) / "test/huggingface/folders/llama";
    for (const char* name : {"config.json", "model.safetensors"}) sound[name] = read_file(llama / name);
    return sound;
  }();
  static ChangedFolder folder("hashed", files);
  folder.renew();
  folder.put(kHashesFile, std::string(text_of(input)));
  const HashesChecked checked = check_hashes(folder.path());
  expect(checked.present && checked.files == files.size(), "what is accepted was compared");
}

// The first byte: the file's name, which says whether it is JSON lines and packed, and what a document is.
void read_documents(Bytes input) {
  static constexpr const char* kNames[] = {"a.txt", "a.jsonl", "a.txt.gz", "a.jsonl.gz", "a.txt.zst", "a.jsonl.zst"};
  constexpr std::size_t kMostPacked = 2048;  // a few kilobytes can unpack to gigabytes
  refuse_empty(input);
  const auto choice = static_cast<std::size_t>(input[0]);
  const std::size_t name = choice % std::size(kNames);
  if (name >= 2 && input.size() > kMostPacked) return;
  const Path path = file_with(input.subspan(1), kNames[name]);
  const DocumentOptions options{.unit = static_cast<DocumentUnit>(choice / std::size(kNames) % 3)};
  const auto any = [](const Sha256Digest&) { return true; };
  std::vector<DocumentPiece> pieces;
  DocumentReader reader({path}, options, {}, any);
  while (auto piece = reader.next()) pieces.push_back(std::move(*piece));
  expect(pieces.empty() || pieces.back().last, "a document ends");
  const std::size_t middle = pieces.size() / 2;
  if (pieces.empty() || !pieces[middle].behind) return;
  DocumentReader again({path}, options, *pieces[middle].behind, any);
  for (std::size_t i = middle + 1; i < pieces.size(); ++i) {
    const auto piece = again.next();
    expect(piece && piece->text == pieces[i].text && piece->digest == pieces[i].digest && piece->last == pieces[i].last,
           "a reading that goes on gives what one in one go gives");
  }
  expect(!again.next(), "and no more");
}

}  // namespace samba::fuzz
