"""Topics of spare time: music, books, films, games, crafts."""

from polyreply.data.smalltalk.topic import Slot, Topic

LEISURE = (
    Topic(
        name="music",
        doing="practising the {instrument}",
        thing="the {instrument}",
        slots={
            "instrument": Slot(
                train="guitar, cello, violin, trumpet, piano, flute, drums, accordion, harp, clarinet",
                valid="banjo, oboe, ukulele",
                test="saxophone, mandolin, bagpipes",
            )
        },
        train=(
            "I practise the {instrument} {hour}, and I still play the same three tunes.",
            "I've dusted off the {instrument}, because I'm to play with {name} {day}.",
            "There's a little band in {place} that wants me on the {instrument}, so I'm practising.",
            "My {kin} can hear me practising the {instrument} {hour}.",
            "The {instrument} came from my {friend}, and now I practise every spare minute.",
        ),
        valid=("{name} found me a teacher, so I'm practising the {instrument} {hour}.",),
        test=("Ever since {name} lent me the {instrument}, I've been practising {hour}.",),
    ),
    Topic(
        name="singing",
        doing="singing {songs}",
        thing="the {songs}",
        slots={
            "songs": Slot(
                train="""folk songs, old ballads, carols, hymns, sea shanties, jazz standards, film songs,
                    duets""",
                valid="opera arias, country songs, rounds",
                test="madrigals, pop songs, gospel songs",
            )
        },
        train=(
            "I sing {songs} in the shower {hour}, quite loudly.",
            "Our choir in {place} is singing {songs} {day}.",
            "{name} plays and I sing {songs}, and that's how we spend our evenings.",
            "I've said I'll sing {songs} at my {friend}'s party {day}.",
        ),
        valid=("They need a low voice, so {name} has me singing {songs} {hour}.",),
        test=("I sing {songs} to the baby {hour}, although {name} covers both ears.",),
    ),
    Topic(
        name="dancing",
        doing="dancing the {dance}",
        thing="the {dance}",
        slots={
            "dance": Slot(
                train="tango, waltz, salsa, foxtrot, rumba, polka, samba, charleston",
                valid="quickstep, flamenco, jive",
                test="bolero, mambo, cha-cha",
            )
        },
        train=(
            "I've signed up with {name} to dance the {dance} {often}.",
            "My left foot doesn't know it yet, but I'm dancing the {dance} {day}.",
            "In a hall in {place} I dance the {dance} {often}.",
            "My {friend} needs a partner, so I'm going to dance the {dance}.",
        ),
        valid=("{name} and I dance the {dance} {often}, with the carpet rolled up.",),
        test=("I can count to four, so {name} has me dancing the {dance} {day}.",),
    ),
    Topic(
        name="films",
        doing="watching {genre} films",
        thing="the {genre} film evenings",
        slots={
            "genre": Slot(
                train="""horror, silent, French, action, superhero, black-and-white, science fiction, crime,
                    wartime""",
                valid="Korean, animated, spy",
                test="gangster, Italian, disaster",
            )
        },
        train=(
            "I watch {genre} films {hour}, usually with the lights off.",
            "{name} and I are going to watch {genre} films {day}.",
            "There's a cinema in {place} that shows nothing but {genre} films, and I watch them all.",
            "My {kin} calls it a phase, but I've been watching {genre} films {hour}.",
        ),
        valid=("{name} comes round {hour}, and we watch {genre} films.",),
        test=("I've bought popcorn, because {day} {name} and I are watching {genre} films.",),
    ),
    Topic(
        name="books",
        doing="reading {books}",
        thing="the {books}",
        slots={
            "books": Slot(
                train="""detective stories, ghost stories, fantasy novels, biographies, Russian novels, love
                    poems, history books, fairy tales, cookery books""",
                valid="westerns, plays, spy novels",
                test="memoirs, nature essays, comic books",
            )
        },
        train=(
            "I read {books} {hour}, and the pile by my bed keeps growing.",
            "{name} lent me a stack, so I'm reading {books} at the moment.",
            "I belong to a club in {place} where we only read {books}.",
            "My {friend} has challenged me to read {books} for a whole year.",
        ),
        valid=("No television for me, as {name} and I read {books} {hour}.",),
        test=("My suitcase will be heavy {season}, since {name} and I mean to read {books}.",),
    ),
    Topic(
        name="writing",
        doing="writing {texts}",
        thing="the {texts}",
        slots={
            "texts": Slot(
                train="""poems, short stories, long letters, travel stories, love songs, song lyrics, film
                    scripts, recipes""",
                valid="limericks, diary entries, book reviews",
                test="haikus, crime stories, open letters",
            )
        },
        train=(
            "I've been writing {texts} {hour}, but nobody has seen them except {name}.",
            "I've joined a group in {place} where we write {texts} {often}.",
            "My {friend} thinks I should write {texts}, so I've made a start.",
            "I write {texts} {hour}, always with the same old pen.",
        ),
        valid=("{name} bought me a notebook, so I'm going to write {texts} {hour}.",),
        test=("I keep a drawer for the {texts} that I write {hour}, and only {name} has the key.",),
    ),
    Topic(
        name="drawing",
        doing="drawing {motif}",
        thing="the drawings of {motif}",
        slots={
            "motif": Slot(
                train="horses, faces, trees, boats, old houses, cats, mountains, hands, dragons",
                valid="lighthouses, insects, castles",
                test="shells, bicycle wheels, windmills",
            )
        },
        train=(
            "I draw {motif} {hour}, on any scrap of paper I can find.",
            "{name} sits for hours beside me while I draw {motif}.",
            "Next to the station in {place} there's a wall where I like to sit and draw {motif}.",
            "My {friend} is putting up some pictures {day}, so I'm drawing {motif} as fast as I can.",
        ),
        valid=("The table is covered in pencils, because {name} and I draw {motif} {hour}.",),
        test=("For the exhibition {day} I've told {name} that I'll draw {motif}.",),
    ),
    Topic(
        name="photography",
        doing="taking photos of {subject}",
        thing="the photos of {subject}",
        slots={
            "subject": Slot(
                train="""bridges, old doors, clouds, street cats, sunsets, shop windows, market stalls,
                    snowflakes""",
                valid="fountains, rusty cars, mushrooms",
                test="spider webs, statues, night skies",
            )
        },
        train=(
            "I walk around {place} {hour} and take photos of {subject}.",
            "My {kin} gave me a camera, so I'm forever taking photos of {subject}.",
            "{name} and I are going out {day} to take photos of {subject}.",
            "My phone is full, because I take photos of {subject} {hour}.",
        ),
        valid=("I've borrowed a tripod from {name}, and {day} I'm taking photos of {subject}.",),
        test=("There's a contest {day}, so {name} and I are busy taking photos of {subject}.",),
    ),
    Topic(
        name="games",
        doing="playing {game}",
        thing="the {game} evenings",
        slots={
            "game": Slot(
                train="chess, bridge, dominoes, backgammon, draughts, poker, darts, snooker, word games",
                valid="cribbage, mahjong, board games",
                test="canasta, billiards, charades",
            )
        },
        train=(
            "I play {game} with {name} {often}, and I nearly always lose.",
            "They're holding a contest in {place} {day}, and I'm going to play {game} there.",
            "My {friend} and I have been playing {game} {often}.",
            "I said I was too busy, but {day} I'm playing {game} with my {kin} again.",
        ),
        valid=("The café down the road lets {name} and me play {game} {often}.",),
        test=("It started as a bet, and now {name} and I play {game} {often}.",),
    ),
    Topic(
        name="puzzles",
        doing="doing {puzzles}",
        thing="the {puzzles}",
        slots={
            "puzzles": Slot(
                train="""crosswords, jigsaws, number puzzles, quizzes, brain teasers, logic puzzles, word
                    searches""",
                valid="riddles, anagrams, acrostics",
                test="mazes, picture puzzles, memory tests",
            )
        },
        train=(
            "I do {puzzles} {hour}, with a big pot of tea.",
            "{name} and I do {puzzles} over the phone {hour}.",
            "On the train to {place} I do {puzzles} until my eyes hurt.",
            "My {kin} says I do too many {puzzles}, and {day} I'm getting a new set.",
        ),
        valid=("A magazine sends me {puzzles}, and {name} and I do them {hour}.",),
        test=("I'm doing {puzzles} to stay sharp, and {name} checks the answers {hour}.",),
    ),
    Topic(
        name="collecting",
        doing="collecting {items}",
        thing="the collection of {items}",
        slots={
            "items": Slot(
                train="""stamps, postcards, old coins, teapots, vinyl records, fridge magnets, toy cars,
                    beer mats""",
                valid="fossils, buttons, snow globes",
                test="marbles, cinema tickets, thimbles",
            )
        },
        train=(
            "I collect {items}, and {day} I'm off to a fair in {place} to find more.",
            "My shelves are bending, because I can't stop collecting {items}.",
            "{name} and I collect {items}, and we meet to swap {often}.",
            "I picked up the habit of collecting {items} from my {kin}.",
        ),
        valid=("Half of the attic belongs to the {items} that {name} and I collect {often}.",),
        test=("I search the flea markets of {place} {often}, because I collect {items}.",),
    ),
)
