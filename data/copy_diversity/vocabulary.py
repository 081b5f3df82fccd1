"""Pools of words that the CopyDiversity prompts are composed from."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(" ".join(phrase.split()) for phrase in text.split(","))


FIRST_NAMES = _words(
    """Amara Bruno Celia Dmitri Elena Farid Greta Hiro Imani Jonas Katya Leo Mina Nadia Omar Petra
    Quentin Rosa Samir Tilda Umberto Vera Wanda Xavier Yara Zeno Alice Ben Clara David Emma Frank
    Grace Henry Isla Jack Karen Liam Maria Noah Olivia Paul Ruth Simon Theresa Victor Wendy Anders
    Beatriz Chen Dalia Esteban Fatima Goran Hana Ivo Jamila Kofi Lucia Mateo"""
)
SURNAMES = _words(
    """Abbott Bergström Castillo Dubois Eriksen Fischer Goldberg Haddad Ivanova Jensen Kowalski
    Lindqvist Moreau Nakamura Okafor Petrov Quiroga Rahman Silva Tanaka Ueda Varga Whitfield Xu
    Young Zimmerman Archer Brook Carter Dawson Ellis Foster Grant Hughes Irwin Jordan Keller Lane
    Marsh Norton Osborne Price Reed Shaw Turner Vance Walsh Yates Mbeki Sato"""
)
CITIES = _words(
    """Lisbon Oslo Kyoto Nairobi Quito Dublin Prague Seville Tampere Gdansk Lyon Porto Ghent Basel
    Utrecht Turin Cork Bergen Malmö Graz Tartu Split Sofia Riga Vilnius Austin Denver Portland
    Boston Halifax Calgary Lima Bogota Montevideo Valparaiso Accra Dakar Tunis Amman Muscat Pune
    Jaipur Penang Hanoi Cebu Osaka Busan Perth Hobart Wellington"""
)
COMPANIES = _phrases(
    """Northwind Traders, Blue Harbor, Fenwick & Sons, Solaris Labs, Granite Works, Maple Street
    Bakery, Orbit Freight, Clearwater Utilities, Juniper Health, Redstone Mining, Hollow Oak Press,
    Vector Optics, Tidewater Bank, Lantern Studios, Copperfield Tools, Meridian Rail, Aspen Foods,
    Silverline Motors, Pinecrest School, Harvest Moon Farms, Quantum Bicycle, Iron Bridge Brewing,
    Starling Airways, Cobalt Software, Willow Creek Hospital, Summit Outdoor, Ember Ceramics"""
)
JOBS = _phrases(
    """engineer, nurse, teacher, baker, librarian, architect, pilot, chemist, gardener, carpenter,
    editor, lawyer, accountant, dentist, mechanic, photographer, translator, plumber, historian,
    geologist, farmer, designer, electrician, biologist, journalist, chef, surveyor, welder,
    tailor, coach"""
)
THINGS = _words(
    """lantern bicycle notebook kettle ladder umbrella camera blanket hammer mirror compass violin
    bucket jacket wallet helmet telescope carpet teapot basket scarf printer backpack candle
    microscope guitar clock vase toaster rope wheelbarrow pencil shovel thermometer whistle magnet
    saddle drum kite anchor pillow trumpet stool keyboard flashlight"""
)
PLURALS = _words(
    """apples tickets books chairs bottles boxes coins plants stamps lamps shirts pens tiles eggs
    cookies marbles bricks posters cups flowers candles pencils stickers balloons photos blankets
    oranges melons sandwiches keys cards shells ribbons batteries jars muffins maps bolts"""
)
ANIMALS = _words(
    """otter heron badger falcon turtle lynx beaver swan fox owl hedgehog seal crow deer moose
    pelican rabbit salmon squirrel tortoise wolf crane gecko hare ibis jackal koala lemur marten
    newt panther quail raven stoat toad viper walrus yak zebra bison"""
)
FOODS = _phrases(
    """lentil soup, rye bread, plum cake, rice pudding, tomato salad, onion tart, bean stew,
    mushroom pie, fish curry, potato dumplings, apple strudel, noodle broth, pumpkin bread,
    walnut cookies, lemon tart, barley porridge, spinach omelette, garlic noodles, cherry jam,
    roast carrots, pea soup, corn fritters, honey cake, pickled beets"""
)
ADJECTIVES = _words(
    """quiet bright narrow heavy gentle ancient modern crooked fragile cheerful dusty elegant famous
    generous hollow icy jagged kind lively muddy noisy odd patient quick rusty shiny sturdy tidy
    unusual vivid warm young silent broad clever damp eager faded golden humble"""
)
COLORS = _words(
    "red blue green yellow black white purple orange brown grey pink silver teal maroon"
)
PLACES = _phrases(
    """library, harbor, old mill, train station, market square, botanical garden, town hall,
    lighthouse, museum, river bank, school yard, cathedral, bus depot, north bridge, city park,
    fish market, observatory, sports hall, post office, quarry, vineyard, ferry terminal,
    community center, swimming pool, bakery, print shop, orchard, greenhouse"""
)
MONTHS = _words(
    """January February March April May June July August September October November December"""
)
WEEKDAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
SUBJECTS = _phrases(
    """photosynthesis, the water cycle, volcanoes, the printing press, gravity, black holes,
    vaccination, recycling, the human heart, magnetism, plate tectonics, bees, inflation, rainbows,
    computer memory, the moon's phases, bread baking, sleep, coral reefs, tides, steam engines,
    friction, electric cars, the nervous system, deserts, glaciers, compost, sound waves, erosion,
    batteries, encryption, databases, compilers, solar panels, antibiotics, migration of birds"""
)
HOBBIES = _phrases(
    """chess, pottery, hiking, birdwatching, knitting, sailing, painting, gardening, cycling,
    photography, climbing, baking, fencing, rowing, astronomy, calligraphy, woodworking, swimming,
    beekeeping, archery"""
)
GENRES = _phrases(
    """short story, fairy tale, diary entry, news report, bedtime story, travel story, mystery
    scene, funny anecdote, letter to a friend, speech, adventure story, science fiction scene"""
)
LANGUAGES = _words("Spanish French German Italian Portuguese Dutch")

CODE_NOUNS = _words(
    """order user item record sensor ticket invoice student message packet account product event
    node player route cell token session task frame entry parcel signal payment review book shift
    device planet batch column sample channel vehicle reading label worker note query"""
)
CODE_VERBS = _words(
    """collect filter count merge update select build find compute group check load rank split
    normalize remove convert summarize scan pick gather clean measure match join sort"""
)
CODE_FIELDS = _words(
    """price weight score size age level rank duration quantity distance status name total depth
    speed height priority balance width length rating index volume cost limit offset"""
)
CODE_LOCALS = _words(
    """result total output values found buffer current summary selected best counter pending
    collected answer stack cache acc chosen kept matches"""
)
SERVICES = _words(
    """auth billing search mailer gateway scheduler inventory metrics cache uploader reporter
    checkout indexer notifier ingest renderer router archiver webhook exporter"""
)
HOST_WORDS = _words(
    """alpha bravo delta echo falcon garnet hazel indigo jade kestrel lotus maple nova onyx
    pearl quartz raven sierra topaz umber violet willow"""
)
SETTING_WORDS = _words(
    """timeout retries port host max_connections log_level cache_size workers batch_size region
    debug interval threshold buffer_size theme language page_size queue_depth backlog compression
    encoding max_age poll_rate rate_limit min_replicas max_replicas grace_period chunk_size"""
)
