import com.rabbitmq.stream.Resource;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** What came by itself, in order; `take` waits for as many as are asked for. */
final class Inbox {
  /** How long anything is waited for. */
  static final Duration PATIENCE = Duration.ofMinutes(2);

  private final List<Object> all = new ArrayList<>();

  synchronized void add(Object thing) {
    all.add(thing);
    notifyAll();
  }

  /** The first `count` of all that ever came, and what is there beyond them. */
  synchronized List<Object> take(int count) throws InterruptedException {
    long deadline = System.nanoTime() + PATIENCE.toNanos();
    while (all.size() < count) {
      long left = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
      if (left <= 0) {
        throw new IllegalStateException("only " + all.size() + " of " + count + ": " + all);
      }
      wait(left);
    }
    return new ArrayList<>(all);
  }

  /** Notes when a producer or consumer is closed. */
  Resource.StateListener closing() {
    return context -> {
      if (context.currentState() == Resource.State.CLOSED) {
        add("closed");
      }
    };
  }
}
