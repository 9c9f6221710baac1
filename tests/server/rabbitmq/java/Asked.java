import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.annotations.SerializedName;
import com.rabbitmq.stream.OffsetSpecification;
import java.util.List;

/** One request; what a request does not need is left out. */
final class Asked {
  @SerializedName("do")
  String action;

  String as;
  String on;
  String of;
  String url;
  String ca;
  String certificate;
  String key;
  String stream;
  String superStream;
  long maxAgeS;
  List<String> keys;
  int partitions;
  String name;
  String routing;
  boolean filter;
  int entrySize;
  String compression;
  List<Sent> messages;
  JsonElement from;
  int storeEvery;
  boolean singleActive;
  List<String> filterValues;
  boolean matchUnfiltered;
  int count;
  long offset;

  /** A message to send. */
  static final class Sent {
    String body;
    Long id;
    String key;
    String filter;
  }

  /** Where a consumer starts. */
  OffsetSpecification start() {
    if (from.isJsonObject()) {
      JsonObject where = from.getAsJsonObject();
      return where.has("offset")
          ? OffsetSpecification.offset(where.get("offset").getAsLong())
          : OffsetSpecification.timestamp(where.get("timestamp").getAsLong());
    }
    switch (from.getAsString()) {
      case "last":
        return OffsetSpecification.last();
      case "next":
        return OffsetSpecification.next();
      default: // "stored" too: a consumer with a name goes on behind what is stored
        return OffsetSpecification.first();
    }
  }
}
